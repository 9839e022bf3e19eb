//! GPUs that let one process in, or none.

use super::world::World;
use crate::Error;

#[test]
fn an_exclusive_gpu_has_the_contexts_of_one_process_until_it_destroys_them_or_ends() {
    let world = World::with("gpus = 2\ncompute_mode = \"exclusive-process\"\n");
    let [a, b] = [(); 2].map(|()| world.process());
    let contexts = [(); 2].map(|()| a.create_context(0).expect("the GPU is free, or its own"));
    assert!(matches!(b.create_context(0), Err(Error::Exclusive { gpu: 0 })));
    let far = b.create_context(1).expect("each GPU counts for itself");
    assert!(matches!(a.create_context(1), Err(Error::Exclusive { gpu: 1 })));
    b.destroy_context(far);
    a.create_context(1).expect("the GPU is free");
    a.destroy_context(contexts[0]);
    assert!(matches!(b.create_context(0), Err(Error::Exclusive { gpu: 0 })), "one context is left");
    drop(a);
    b.create_context(0).expect("the process has ended");
}

#[test]
fn a_prohibited_gpu_has_no_contexts() {
    let world = World::with("compute_mode = \"prohibited\"\n");
    assert!(matches!(world.process().create_context(0), Err(Error::Prohibited { gpu: 0 })));
    assert!(matches!(world.process().serve(), Err(Error::Prohibited { gpu: 0 })));
}
