// SPDX-License-Identifier: Apache-2.0
#include "ronde/plugin/transport.h"

namespace ronde {

Incoming Transport::receive(Clock::time_point deadline) {
  for (;;) {
    Incoming incoming = poll();
    if (incoming.kind != Incoming::Kind::Nothing || Clock::now() >= deadline) return incoming;
    if (wait(deadline, -1)) return poll();
  }
}

}  // namespace ronde
