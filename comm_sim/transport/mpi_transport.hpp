// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>

#include "comm_sim/transport/transport.hpp"

namespace tokenview {

/// The processes of mpirun. Made once in a process; MPI is at its end when it goes. A process that
/// dies ends the whole run, as mpirun does it; one that fails tells the others.
///
/// Messages are taken and given in host memory, whatever the library can do with other memory.
/// Throws CommError where MPI does not start, and in a build without it.
std::unique_ptr<Transport> mpi_transport(Transport::Seconds limit = Transport::default_limit);

}  // namespace tokenview
