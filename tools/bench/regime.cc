// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/regime.h"

#include <cmath>

#include "tools/bench/ring.h"
#include "tools/bench/turns.h"

namespace ronde::tool {

std::string regime_of(double microseconds) {
  constexpr double kLimit = 250.0;
  return microseconds < kLimit ? "near" : "far";
}

std::string regime_text(Session& session, double microseconds) {
  return regime_of(microseconds) + ": plain MPI_Allreduce of " + size_text(kRegimeBytes) +
         " took " + std::to_string(std::lround(microseconds)) + " us (" +
         session.peers().thread_level().value_or("no MPI") + ")";
}

double measure_regime(Session& session) {
  constexpr int kWarmup = 3;
  constexpr int kIterations = 21;
  Ring memory(kRegimeBytes);
  memory.split(kRegimeBytes, kRegimeBytes);
  const auto call = [&] {
    Request request;
    request.shape = {kRegimeBytes / sizeof(float)};
    request.input = request.output = memory.next();
    session.baseline()->run(std::move(request));
  };
  const auto settle = [&] { session.subject().settle(); };
  return median(take_turns(session.peers(), {{call, settle}}, kWarmup, kIterations).front());
}

}  // namespace ronde::tool
