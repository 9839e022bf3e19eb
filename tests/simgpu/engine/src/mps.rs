//! MPS: clients of one server run kernels at once, each within its part of the SMs.
//!
//! An MPS server is a process that has a context on each GPU, its *seat*. In the turns of the seat,
//! the kernels of all clients run together. Processes that are no clients take turns with the
//! server. When the server ends for any reason, its clients lose their contexts and their memory,
//! and can use the GPUs no more.

use crate::{
    ALL_SMS_PPM, Error, Host,
    journal::Memory,
    layout::{State, process_state},
    liveness,
};

/// The error of a call that names no living server.
const NO_SERVER: Error = Error::Gone("MPS server");

impl Host {
    /// Makes this process an MPS server, and returns the number by which clients join it.
    ///
    /// # Errors
    /// [`Error::Full`] if there are too many contexts; [`Error::Forked`].
    pub fn serve(&self) -> Result<usize, Error> {
        for gpu in 0..self.gpu_count() {
            // The clients' contexts count as memory; the server's own contexts take none.
            let seat = self.create_context_of(gpu, 0)?;
            let mut guard = self.lock_state().ok_or(Error::Forked)?;
            guard.put(&self.own_record().gpus[gpu].seat, u64::from(seat.index) + 1);
            guard.commit();
        }
        Ok(self.number())
    }

    /// Makes this process a client of the server with this number. The contexts that the process
    /// creates from now on belong to the server. The client's kernels together use at most
    /// `sm_limit_ppm` of each GPU's SMs, parts per million.
    ///
    /// # Errors
    /// [`Error::Gone`] if no server with this number lives; [`Error::Forked`].
    pub fn join(&self, server: usize, sm_limit_ppm: u32) -> Result<(), Error> {
        let mut guard = self.lock_state().ok_or(Error::Forked)?;
        let found = guard.state().processes.get(server).ok_or(NO_SERVER)?;
        if guard.get(&found.state) != process_state::ALIVE || guard.get(&found.gpus[0].seat) == 0 {
            return Err(NO_SERVER);
        }
        let own = self.own_record();
        guard.put(&own.server, server as u64 + 1);
        guard.put(&own.sm_limit_ppm, sm_limit_ppm.clamp(1, ALL_SMS_PPM).into());
        guard.commit();
        Ok(())
    }

    /// Returns whether this process was the client of a server that has ended. The processes that
    /// use the GPUs notice such an end within some 10 ms.
    #[inline]
    pub fn has_lost_server(&self) -> bool {
        self.own_record().has_lost_server.load() != 0
    }

    /// Returns an error if this process has lost its server. The caller has locked the state.
    pub(crate) fn check_server(&self) -> Result<(), Error> {
        if self.has_lost_server() { Err(NO_SERVER) } else { Ok(()) }
    }

    /// Returns the ids of the living clients of this server, each in the client's pid namespace.
    pub fn clients(&self) -> Vec<u32> {
        let Some(guard) = self.lock_state() else { return Vec::new() };
        let state = guard.state();
        // The number may have been that of an earlier server, whose clients are lost.
        let is_own = |number: &usize| {
            is_client(&*guard, state, *number, self.number())
                && guard.get(&state.processes[*number].has_lost_server) == 0
        };
        let numbers = liveness::records(&*guard, state).map(|(number, ..)| number).filter(is_own);
        numbers.map(|number| guard.get(&state.processes[number].pid) as u32).collect()
    }
}

/// Returns whether a process is a living client of a server.
fn is_client<M: Memory>(memory: &M, state: &State, number: usize, server: usize) -> bool {
    let process = &state.processes[number];
    memory.get(&process.state) == process_state::ALIVE && memory.get(&process.server) == server as u64 + 1
}

/// Ends the clients of a server that is dead or ends. The caller has computed the state up to
/// `now_ns`. The function makes several transactions. If the calling process dies between two
/// transactions, the next process calls the function again.
pub fn end_clients<M: Memory>(memory: &mut M, state: &State, server: usize, now_ns: u64) {
    if state.processes[server].gpus.iter().all(|gpu| memory.get(&gpu.seat) == 0) {
        return;
    }
    let clients: Vec<usize> = liveness::records(memory, state)
        .map(|(number, ..)| number)
        .filter(|&number| is_client(memory, state, number, server))
        .collect();
    for number in clients {
        memory.put(&state.processes[number].has_lost_server, 1);
        memory.commit();
        liveness::strip(memory, state, number, now_ns);
    }
}
