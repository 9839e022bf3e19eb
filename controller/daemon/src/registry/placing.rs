//! Chooses the GPUs of a job that asks for a number of GPUs.
//!
//! The daemon knows the promises on each GPU. The promises are the shares and memory limits of the
//! tenants for which it chose the GPU, and of all other tenants with sessions there. A GPU with a
//! fault gets no job.

use super::waiting::{HOLDS_BACK_NS, Lack, Waiter, Waiting};
use super::{Refused, Tenants};
use crate::gpus::Gpus;
use crate::memory::Memory;
use crate::tenant::Placed;
use deepres_abi::PPM;
use deepres_abi::wire::{Hello, RefusalKind};
use deepres_model::clock::monotonic_ns;
use deepres_policy::placement::{GpuSet, Placement, Request, Room, place};
use std::num::NonZero;

/// The reason for the GPUs of a job that an earlier daemon placed.
const EARLIER: &str = "an earlier daemon chose these GPUs";

/// The choice of GPUs for jobs. A job gets a place among the waiting jobs if it finds no room.
#[derive(Debug)]
pub struct Placer<'a> {
    gpus: &'a Gpus,
    memory: &'a Memory,
    tenants: &'a mut Tenants,
    waiting: &'a mut Waiting,
}

impl<'a> Placer<'a> {
    /// Returns the choice among these GPUs, beside these tenants and waiting jobs.
    pub fn new(
        gpus: &'a Gpus,
        memory: &'a Memory,
        tenants: &'a mut Tenants,
        waiting: &'a mut Waiting,
    ) -> Self {
        Self { gpus, memory, tenants, waiting }
    }

    /// Chooses the GPUs of a tenant's job, if the keeper's hello asks for a number of GPUs. Returns
    /// the chosen GPUs; the empty set if the hello does not ask.
    ///
    /// # Errors
    ///
    /// Returns [`Refused`] if too few GPUs have room, or if another run of the tenant has a
    /// different number of GPUs.
    pub fn place(&mut self, name: &str, hello: &Hello) -> Result<GpuSet, Refused> {
        let Some(wanted) = NonZero::new(hello.wants_gpus as usize) else { return Ok(GpuSet::EMPTY) };
        let among: GpuSet = hello.gpus().iter().filter_map(|uuid| self.gpus.number_of(uuid)).collect();
        let Some(tenant) = self.tenants.get(name) else { return Ok(GpuSet::EMPTY) };
        let placed = match &tenant.placed {
            Some(placed) if placed.gpus.len() == wanted.get() && placed.gpus.is_within(among) => {
                return Ok(placed.gpus);
            }
            Some(placed) => {
                let gpus: Vec<String> = placed.gpus.iter().map(|gpu| gpu.to_string()).collect();
                let reason = format!(
                    "the tenant `{name}` runs already on the GPUs {}; ask for {} of them, or choose another --name",
                    gpus.join(", "),
                    gpus.len()
                );
                return Err(Refused::new(RefusalKind::Request, reason));
            }
            None if hello.sessions_before > 0 => Placed { gpus: among, why: EARLIER.to_owned() },
            None => self.choose_in_turn(name, wanted, among, hello.waits != 0)?,
        };
        let gpus = placed.gpus;
        if let Some(tenant) = self.tenants.get_mut(name) {
            let gpus: Vec<_> = gpus.iter().collect();
            tracing::info!(tenant = name, ?gpus, why = placed.why, "the daemon chose the GPUs of a job");
            tenant.placed = Some(placed);
        }
        Ok(gpus)
    }

    /// Chooses GPUs `among` the GPUs that the job can see, unless other jobs came before and wait
    /// for some of these GPUs. Notes whether the job waits.
    fn choose_in_turn(
        &mut self,
        name: &str,
        wanted: NonZero<usize>,
        among: GpuSet,
        waits: bool,
    ) -> Result<Placed, Refused> {
        let Some(tenant) = self.tenants.get(name) else { return Err(refused("the tenant is gone")) };
        let (key, user, now_ns) = (tenant.owner.key.clone(), tenant.owner.user, monotonic_ns());
        let granted = tenant.terms.granted();
        let request = Request {
            gpus: wanted,
            share_ppm: granted.share_ppm.value.unwrap_or(0),
            memory_bytes: granted.memory_bytes.value.unwrap_or(0),
            among: among & self.gpus.well(),
        };
        let lacks_same =
            |lack| matches!(lack, Lack::Gpus { among: other, .. } if !(other & among).is_empty());
        let chosen = if self.waiting.is_behind(&key, now_ns, HOLDS_BACK_NS, lacks_same) {
            Err(refused("other jobs came before, and wait for GPUs"))
        } else {
            self.choose(name, &request)
        };
        // A job that could not run on the empty machine has no place in the order. For example, a
        // GPU that it needs has a fault.
        if chosen.is_err() && waits && self.has_room_without_others(&request) {
            let lack = Lack::Gpus { count: wanted.get(), among };
            self.waiting.note(Waiter { key, name: name.to_owned(), user, lack }, now_ns);
        } else {
            self.waiting.remove(&key);
        }
        chosen
    }

    fn choose(&self, name: &str, request: &Request) -> Result<Placed, Refused> {
        let rooms: Vec<Room> = self.gpus.numbers().map(|gpu| self.room(name, gpu)).collect();
        let Placement { gpus, why } =
            place(&self.gpus.topology(), &rooms, request).map_err(|refusal| refused(&refusal.to_string()))?;
        Ok(Placed { gpus, why: why.to_string() })
    }

    /// Returns whether the GPUs would have room for a job if they had no other job.
    fn has_room_without_others(&self, request: &Request) -> bool {
        let room = |gpu| Room {
            share_ppm: PPM,
            memory_bytes: self.memory.for_tenants(self.gpus, gpu),
            ..Room::default()
        };
        let rooms: Vec<Room> = self.gpus.numbers().map(room).collect();
        place(&self.gpus.topology(), &rooms, request).is_ok()
    }

    /// Returns the room on a GPU beside all living tenants but `own`. A tenant takes the memory
    /// that it was granted or holds, whichever is more.
    fn room(&self, own: &str, gpu: usize) -> Room {
        let memory_bytes = self.memory.for_tenants(self.gpus, gpu);
        let mut room = Room { share_ppm: PPM, memory_bytes, singles: 0, gangs: 0 };
        for (_, tenant) in self.tenants.living().filter(|(name, _)| *name != own) {
            let gpus = tenant.promised_gpus();
            if !gpus.contains(gpu) {
                continue;
            }
            let granted = tenant.terms.granted();
            let taken_bytes = granted.memory_bytes.value.unwrap_or(0).max(tenant.holding(gpu).firm_bytes);
            room.share_ppm = room.share_ppm.saturating_sub(granted.share_ppm.value.unwrap_or(0));
            room.memory_bytes = room.memory_bytes.saturating_sub(taken_bytes);
            *(if gpus.len() > 1 { &mut room.gangs } else { &mut room.singles }) += 1;
        }
        room
    }
}

/// Chooses `count` whole GPUs among the machine's GPUs with these UUIDs. Returns the UUIDs of the
/// chosen GPUs and the reason.
///
/// # Errors
///
/// Returns the message for the agent that asked, if the machine has too few of these GPUs.
pub fn place_whole(machine: &Gpus, count: usize, among: &[String]) -> Result<(Vec<String>, String), String> {
    let gpus = NonZero::new(count).ok_or("a job needs at least one GPU")?;
    let among: GpuSet = among.iter().filter_map(|uuid| machine.number_named(uuid)).collect();
    let whole = Room { share_ppm: PPM, memory_bytes: u64::MAX, singles: 0, gangs: 0 };
    let rooms: Vec<Room> = machine.numbers().map(|_| whole).collect();
    let request = Request { gpus, share_ppm: PPM, memory_bytes: 0, among: among & machine.well() };
    let Placement { gpus, why } =
        place(&machine.topology(), &rooms, &request).map_err(|refusal| refusal.to_string())?;
    Ok((machine.uuids_of(gpus).map(str::to_owned).collect(), why.to_string()))
}

fn refused(reason: &str) -> Refused {
    Refused::new(RefusalKind::NoRoom, reason)
}
