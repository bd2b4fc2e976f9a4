// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backends/compose.h"
#include "tests/support/ranks/ranks.h"

namespace ronde::test {

/// Options of a rank that no launcher started.
inline RuntimeOptions options_without_launcher(const KeyValueStart& start,
                                               const Config& config = test_config()) {
  BuiltIn built_in = compose_without_launcher(config, start);
  RuntimeOptions options;
  options.config = config;
  options.make_transport = std::move(built_in.make_transport);
  options.make_board = std::move(built_in.make_board);
  options.backends = std::move(built_in.backends);
  return options;
}

}  // namespace ronde::test
