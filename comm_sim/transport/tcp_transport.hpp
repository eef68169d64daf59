// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>

#include "comm_sim/transport/process_rank.hpp"
#include "comm_sim/transport/transport.hpp"

namespace tokenview {

/// A world of processes on TCP: rank 0 listens at `place`, the others connect to it, and what they
/// send each other passes through it. Returns when all have come. A process that dies closes its
/// connection, so the others know at once.
///
/// Throws CommError where the place cannot be used, and, when `patience` has passed, with the ranks
/// that did not come.
std::unique_ptr<Transport> tcp_transport(std::int64_t rank, std::int64_t size,
                                         const MeetingPlace& place,
                                         Transport::Seconds patience = Transport::Seconds(60),
                                         Transport::Seconds limit = Transport::default_limit);

}  // namespace tokenview
