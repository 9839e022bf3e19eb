//! Tables that map the opaque handles of clients to objects.
//!
//! A handle looks like a pointer, but is a number of kind, generation and slot. The driver detects
//! stale handles, handles of another kind, and random pointers without reading the memory at that
//! address. So a wrong handle gives an error code and never a crash.
use std::sync::{Arc, RwLock};

const SLOT_SHIFT: u32 = 4;
const SLOT_BITS: u32 = 22;
const GENERATION_SHIFT: u32 = SLOT_SHIFT + SLOT_BITS;
const GENERATION_BITS: u32 = 16;
const KIND_SHIFT: u32 = GENERATION_SHIFT + GENERATION_BITS;
const SLOT_MASK: usize = (1 << SLOT_BITS) - 1;
const GENERATION_MASK: usize = (1 << GENERATION_BITS) - 1;

/// The kind of object. The kind is part of the handle, so that a handle of one kind never passes
/// for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Kind {
    /// The kind of a `CUcontext`.
    Context = 1,
    /// The kind of a `CUstream`.
    Stream = 2,
    /// The kind of a `CUevent`.
    Event = 3,
    /// The kind of a `CUmodule`.
    Module = 4,
    /// The kind of a `CUfunction`.
    Function = 5,
    /// The kind of a `CUlibrary`.
    Library = 6,
    /// The kind of a `CUkernel`.
    Kernel = 7,
    /// The kind of a `CUmemoryPool`.
    Pool = 8,
    /// The kind of a `CUmemGenericAllocationHandle`.
    Physical = 9,
    /// The kind of a `CUgraph`.
    Graph = 10,
    /// The kind of a `CUgraphExec`.
    GraphExec = 11,
    /// The kind of a `CUgraphNode`.
    GraphNode = 12,
    /// The kind of a `CUuserObject`.
    UserObject = 13,
    /// The kind of a `CUarray`.
    Array = 14,
    /// The kind of a `CUmipmappedArray`.
    Mipmapped = 15,
    /// The kind of a `CUexternalMemory`.
    External = 16,
    /// The kind of a `CUgreenCtx`.
    Green = 17,
    /// The kind of a `CUdevResourceDesc`.
    Descriptor = 18,
}

struct Slot<T> {
    generation: usize,
    object: Option<Arc<T>>,
}

struct Slots<T> {
    entries: Vec<Slot<T>>,
    free: Vec<usize>,
}

/// All live objects of one kind.
pub struct Table<T> {
    kind: Kind,
    slots: RwLock<Slots<T>>,
}

impl<T> Table<T> {
    /// Creates an empty table whose handles contain `kind`.
    pub const fn new(kind: Kind) -> Self {
        Self { kind, slots: RwLock::new(Slots { entries: Vec::new(), free: Vec::new() }) }
    }

    fn encode(&self, slot: usize, generation: usize) -> usize {
        (self.kind as usize) << KIND_SHIFT
            | (generation & GENERATION_MASK) << GENERATION_SHIFT
            | slot << SLOT_SHIFT
    }

    fn decode(&self, handle: usize) -> Option<(usize, usize)> {
        let slot = handle >> SLOT_SHIFT & SLOT_MASK;
        let generation = handle >> GENERATION_SHIFT & GENERATION_MASK;
        (handle == self.encode(slot, generation)).then_some((slot, generation))
    }

    /// Stores the object that `make` builds from its own handle. Returns `None` when the table is
    /// full.
    pub fn insert_with(&self, make: impl FnOnce(usize) -> Arc<T>) -> Option<Arc<T>> {
        let mut slots = self.slots.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        let slot = match slots.free.pop() {
            Some(slot) => slot,
            None if slots.entries.len() <= SLOT_MASK => {
                slots.entries.push(Slot { generation: 1, object: None });
                slots.entries.len() - 1
            }
            None => return None,
        };
        let object = make(self.encode(slot, slots.entries[slot].generation));
        slots.entries[slot].object = Some(Arc::clone(&object));
        Some(object)
    }

    /// Returns the object of `handle`, if it lives.
    pub fn get(&self, handle: usize) -> Option<Arc<T>> {
        let (slot, generation) = self.decode(handle)?;
        let slots = self.slots.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let entry = slots.entries.get(slot)?;
        if entry.generation & GENERATION_MASK == generation { entry.object.clone() } else { None }
    }

    /// Removes the object and returns it. The handle is stale from then on.
    pub fn remove(&self, handle: usize) -> Option<Arc<T>> {
        let (slot, generation) = self.decode(handle)?;
        let mut slots = self.slots.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        let entry = slots.entries.get_mut(slot)?;
        if entry.generation & GENERATION_MASK != generation {
            return None;
        }
        let object = entry.object.take()?;
        entry.generation += 1;
        slots.free.push(slot);
        Some(object)
    }

    /// Returns whether `handle` could be a handle of this table, past or present.
    pub fn is_kind(&self, handle: usize) -> bool {
        self.decode(handle).is_some()
    }

    /// Returns every live object.
    pub fn all(&self) -> Vec<Arc<T>> {
        let slots = self.slots.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        slots.entries.iter().filter_map(|entry| entry.object.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_finds_its_object_until_it_is_removed() {
        let table = Table::new(Kind::Event);
        let mut handle = 0;
        table.insert_with(|own| {
            handle = own;
            Arc::new(7)
        });
        assert_eq!(table.get(handle).as_deref(), Some(&7));
        assert_eq!(table.remove(handle).as_deref(), Some(&7));
        assert_eq!(table.get(handle), None);
        assert_eq!(table.remove(handle), None);
    }

    #[test]
    fn a_reused_slot_does_not_revive_an_old_handle() {
        let table = Table::new(Kind::Event);
        let mut handles = Vec::new();
        for value in 0..2 {
            table.insert_with(|own| {
                handles.push(own);
                Arc::new(value)
            });
            if value == 0 {
                table.remove(handles[0]);
            }
        }
        assert_ne!(handles[0], handles[1]);
        assert_eq!(table.get(handles[0]), None);
        assert_eq!(table.get(handles[1]).as_deref(), Some(&1));
    }

    #[test]
    fn handles_of_another_kind_and_random_pointers_are_refused() {
        let events: Table<i32> = Table::new(Kind::Event);
        let streams: Table<i32> = Table::new(Kind::Stream);
        let mut handle = 0;
        streams.insert_with(|own| {
            handle = own;
            Arc::new(1)
        });
        assert!(!events.is_kind(handle));
        assert_eq!(events.get(handle), None);
        for odd in [0, 1, 2, handle | 1, usize::MAX, 0x7fff_dead_beef] {
            assert_eq!(streams.get(odd), None, "{odd:#x}");
        }
    }
}
