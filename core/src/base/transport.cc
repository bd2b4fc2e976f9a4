// SPDX-License-Identifier: Apache-2.0
#include "ronde/plugin/transport.h"

#include "core/src/base/monotonic_clock.h"

namespace ronde {

Incoming Transport::receive(Clock::time_point deadline) {
  for (;;) {
    Incoming incoming = poll();
    if (incoming.kind != Incoming::Kind::Nothing || MonotonicClock::now() >= deadline)
      return incoming;
    if (wait(deadline, -1)) return poll();
  }
}

}  // namespace ronde
