// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/compose.h"
#include "tests/support/ranks/ranks.h"

namespace ronde::test {

/// A runtime of what this build brings.
inline RuntimeOptions options_of(Config config, BuiltIn built_in) {
  RuntimeOptions options;
  options.config = std::move(config);
  options.make_transport = std::move(built_in.make_transport);
  options.make_board = std::move(built_in.make_board);
  options.backends = std::move(built_in.backends);
  options.device_backends = std::move(built_in.device_backends);
  return options;
}

/// Returns the options of a rank that no launcher started.
inline RuntimeOptions options_without_launcher(const KeyValueStart& start,
                                               const Config& config = test_config()) {
  return options_of(config, compose_without_launcher(config, start));
}

}  // namespace ronde::test
