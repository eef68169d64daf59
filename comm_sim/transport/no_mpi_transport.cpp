// SPDX-License-Identifier: Apache-2.0
#include "comm_sim/transport/mpi_transport.hpp"

namespace tokenview {

std::unique_ptr<Transport> mpi_transport(Transport::Seconds) {
  throw CommError("no MPI: built without it");
}

}  // namespace tokenview
