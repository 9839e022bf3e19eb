//! The graph API: descriptors with attributes, and the execution of plans.
//!
//! A program describes tensors and operations, asks for the engines that can run a graph of
//! operations, and makes a plan of an engine. A descriptor here keeps the attributes that it got.
//! One engine runs every graph of convolutions and of operations on single elements. Operations on
//! single elements run within the kernel of a convolution.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::slice;
use std::sync::Arc;

use deepres_abi::driver::types::CUstream;
use simgpu_driver::Result;

use super::{BAD_PARAM, Dnn, NOT_SUPPORTED, status};
use crate::kernels::{self, Extents, Kernel};
use crate::objects::{SUCCESS, create, destroy};

/// Kinds of descriptors: `CUDNN_BACKEND_…_DESCRIPTOR`.
mod kind {
    pub const ENGINE: u32 = 2;
    pub const ENGINE_CONFIGURATION: u32 = 3;
    pub const CONVOLUTION_FORWARD: u32 = 10;
    pub const CONVOLUTION_BACKWARD_FILTER: u32 = 11;
    pub const CONVOLUTION_BACKWARD_DATA: u32 = 12;
    pub const POINTWISE: u32 = 13;
    pub const OPERATION_GRAPH: u32 = 15;
}

/// Names of attributes: `CUDNN_ATTR_…`.
mod attribute {
    pub const HEURISTICS_OPERATION_GRAPH: u32 = 201;
    pub const HEURISTICS_RESULTS: u32 = 202;
    pub const CONFIGURATION_ENGINE: u32 = 300;
    pub const PLAN_ENGINE_CONFIGURATION: u32 = 401;
    pub const FORWARD_W: u32 = 703;
    pub const FORWARD_Y: u32 = 705;
    pub const DATA_W: u32 = 709;
    pub const DATA_DX: u32 = 710;
    pub const DATA_DY: u32 = 711;
    pub const FILTER_DW: u32 = 715;
    pub const FILTER_DY: u32 = 717;
    pub const GRAPH_OPERATIONS: u32 = 801;
    pub const TENSOR_DIMENSIONS: u32 = 902;
    pub const ENGINE_OPERATION_GRAPH: u32 = 1300;
}

/// The type of 64-bit numbers: `CUDNN_TYPE_INT64`.
const INT64: u32 = 3;
/// The type of descriptors: `CUDNN_TYPE_BACKEND_DESCRIPTOR`.
const DESCRIPTOR: u32 = 15;

/// Returns the bytes of an element of a `cudnnBackendAttributeType_t`.
fn element_bytes(of: u32) -> usize {
    match of {
        // CUDNN_TYPE_BOOLEAN, CUDNN_TYPE_CHAR
        2 | 24 => 1,
        // CUDNN_TYPE_HANDLE, CUDNN_TYPE_INT64, CUDNN_TYPE_DOUBLE, CUDNN_TYPE_VOID_PTR
        0 | 3 | 5 | 6 => 8,
        // CUDNN_TYPE_FRACTION
        26 => 16,
        // Numbers of 32 bits and enumerations.
        _ => 4,
    }
}

/// The object behind a `cudnnBackendDescriptor_t`.
#[derive(Clone, Default)]
pub struct Descriptor {
    kind: u32,
    attributes: BTreeMap<u32, Value>,
}

#[derive(Clone)]
enum Value {
    /// Numbers: the bytes of the elements, in order.
    Plain(Vec<u8>),
    /// Descriptors as they were when the program set the attribute. The program may end them.
    Descriptors(Vec<Arc<Descriptor>>),
}

impl Descriptor {
    fn with(kind: u32, attribute: u32, value: Arc<Self>) -> Arc<Self> {
        let attributes = BTreeMap::from([(attribute, Value::Descriptors(vec![value]))]);
        Arc::new(Self { kind, attributes })
    }

    /// Returns the descriptors of an attribute. For heuristics, the one engine is the result.
    fn descriptors(&self, attribute: u32) -> Vec<Arc<Self>> {
        if attribute == attribute::HEURISTICS_RESULTS {
            let engine = |graph| Self::with(kind::ENGINE, attribute::ENGINE_OPERATION_GRAPH, graph);
            let configured = |graph| {
                Self::with(kind::ENGINE_CONFIGURATION, attribute::CONFIGURATION_ENGINE, engine(graph))
            };
            let graphs = self.descriptors(attribute::HEURISTICS_OPERATION_GRAPH);
            return graphs.into_iter().map(configured).collect();
        }
        match self.attributes.get(&attribute) {
            Some(Value::Descriptors(descriptors)) => descriptors.clone(),
            _ => Vec::new(),
        }
    }

    fn descriptor(&self, attribute: u32) -> Option<Arc<Self>> {
        self.descriptors(attribute).into_iter().next()
    }

    /// Returns the extents of the tensor of an attribute.
    fn tensor(&self, attribute: u32) -> Option<Vec<u64>> {
        let tensor = self.descriptor(attribute)?;
        let Value::Plain(bytes) = tensor.attributes.get(&attribute::TENSOR_DIMENSIONS)? else { return None };
        let (extents, _) = bytes.as_chunks::<8>();
        Some(extents.iter().map(|extent| u64::from_ne_bytes(*extent)).collect())
    }

    /// Returns the product of matrices that has as many sums and terms as an operation; `None` for
    /// an operation that is not supported.
    fn product(&self) -> Option<Extents> {
        use attribute::*;
        // The result, the output of the convolution, its weights, and the part of the result's
        // dimensions that are the rows of the product.
        let (result, output, weights, row) = match self.kind {
            kind::CONVOLUTION_FORWARD => (FORWARD_Y, FORWARD_Y, FORWARD_W, 1),
            kind::CONVOLUTION_BACKWARD_DATA => (DATA_DX, DATA_DY, DATA_W, 1),
            kind::CONVOLUTION_BACKWARD_FILTER => (FILTER_DW, FILTER_DY, FILTER_DW, 0),
            _ => return None,
        };
        let (result, output, weights) = (self.tensor(result)?, self.tensor(output)?, self.tensor(weights)?);
        let count = |extents: &[u64]| extents.iter().product::<u64>();
        let m = *result.get(row)?;
        let n = count(&result).checked_div(m)?;
        // Each element of the output is a sum over the weights of its channel.
        let terms = count(&output) * count(weights.get(1..)?);
        Some(Extents { m, n, k: terms.div_ceil((m * n).max(1)), batch: 1 })
    }

    /// Runs the operations of a plan on a stream.
    fn run(&self, stream: CUstream) -> Result<()> {
        let engine = self
            .descriptor(attribute::PLAN_ENGINE_CONFIGURATION)
            .and_then(|configuration| configuration.descriptor(attribute::CONFIGURATION_ENGINE));
        let graph = engine.and_then(|engine| engine.descriptor(attribute::ENGINE_OPERATION_GRAPH));
        let operations = graph.map(|graph| graph.descriptors(attribute::GRAPH_OPERATIONS));
        for operation in operations.unwrap_or_default() {
            if let Some(extents) = operation.product() {
                kernels::multiply(Kernel::Convolution, stream, extents)?;
            }
        }
        Ok(())
    }
}

exports! {
    cudnnBackendCreateDescriptor(kind: u32, descriptor: *mut *mut Descriptor) {
        create(descriptor, Descriptor { kind, ..Descriptor::default() });
    }
    cudnnBackendDestroyDescriptor(descriptor: *mut Descriptor) { destroy(descriptor) }
    cudnnBackendSetAttribute(
        descriptor: *mut Descriptor, name: u32, element: u32, count: i64, elements: *const c_void
    ) {
        let Ok(count) = usize::try_from(count) else { return BAD_PARAM };
        let value = if count == 0 {
            Value::Plain(Vec::new())
        } else if element == DESCRIPTOR {
            let others = slice::from_raw_parts(elements.cast::<*const Descriptor>(), count);
            Value::Descriptors(others.iter().map(|other| Arc::new((**other).clone())).collect())
        } else {
            let bytes = slice::from_raw_parts(elements.cast::<u8>(), count * element_bytes(element));
            Value::Plain(bytes.to_vec())
        };
        (*descriptor).attributes.insert(name, value);
    }
    // Ends the description. A graph must have a convolution.
    cudnnBackendFinalize(descriptor: *mut Descriptor) {
        let descriptor = &*descriptor;
        let mut others = descriptor.descriptors(attribute::GRAPH_OPERATIONS);
        let operations = others.len();
        others.retain(|operation| operation.product().is_none());
        let is_supported = others.len() < operations
            && others.iter().all(|operation| operation.kind == kind::POINTWISE);
        if descriptor.kind == kind::OPERATION_GRAPH && !is_supported { NOT_SUPPORTED } else { SUCCESS }
    }
    // Gives an attribute. A number that nobody set is 0, and any other attribute has no elements
    // then.
    cudnnBackendGetAttribute(
        descriptor: *const Descriptor, name: u32, element: u32, room: i64, count: *mut i64,
        elements: *mut c_void
    ) {
        let descriptor = &*descriptor;
        // A program that asks for the count alone gives no array.
        let room = if elements.is_null() { 0 } else { usize::try_from(room).unwrap_or(0) };
        let found = if element == DESCRIPTOR {
            let found = descriptor.descriptors(name);
            for (at, from) in found.iter().enumerate().take(room) {
                // The array has descriptors of the program, which take the result.
                (**elements.cast::<*mut Descriptor>().add(at)).clone_from(from);
            }
            found.len()
        } else {
            let none = if element == INT64 { vec![0; size_of::<i64>()] } else { Vec::new() };
            let bytes = match descriptor.attributes.get(&name) {
                Some(Value::Plain(bytes)) => bytes,
                _ => &none,
            };
            if room > 0 {
                let given = bytes.len().min(room * element_bytes(element));
                elements.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), given);
            }
            bytes.len() / element_bytes(element)
        };
        if !count.is_null() {
            count.write(found as i64);
        }
    }
    cudnnBackendExecute(handle: *mut Dnn, plan: *const Descriptor, _data: *const Descriptor) {
        status((*plan).run((*handle).stream))
    }
}
