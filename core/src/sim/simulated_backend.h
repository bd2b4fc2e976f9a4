// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "core/src/sim/event_queue.h"
#include "core/src/sim/network.h"
#include "ronde/plugin/factory.h"
#include "ronde/simulation.h"

namespace ronde {

/// Makes the backends of simulated ranks, all of one group. What is given, and the result, must
/// outlive them and their events.
/// `wake`: is called when an operation of that rank has ended.
///
/// Note [Simulated operations]
/// Data between hosts goes by the algorithms of core/src/algorithms, over messages that have sizes
/// only. An allreduce has the form of backends/hierarchical (Note [A round over several hosts]), in
/// its rounds and shards. Where every host has one rank, its rounds are the chunks of
/// PackingBackend, which copies them in and out. A broadcast is between all ranks, as there, but
/// within one host a round through its memory. There is nothing else.
/// Operations advance in events of the network; poll() only tells whether they have ended.
BackendFactory simulated_backend_factory(SimulatedNetwork& network, EventQueue& events,
                                         const SimulationOptions& options,
                                         std::function<void(int rank)> wake);

}  // namespace ronde
