// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "core/src/op/op_spec.h"
#include "ronde/config.h"
#include "ronde/log.h"
#include "ronde/runtime.h"
#include "ronde/topology.h"

namespace ronde {

/// Returns rank 0's choice from the file RONDE_TUNED, as "NAME=value" lines for with_values(),
/// without the variables that the user has set. If the file cannot be used, or is for another
/// number of ranks or hosts, logs that, drops `options.tuning.known`, and returns an empty text.
std::string tuned_values(RuntimeOptions& options, const Topology& topology, const Logger& log);

/// Returns `config` with these values. Throws UsageError.
Config with_values(Config config, std::string_view lines);

/// A signature of a model: of the names, kinds, types and shapes of the operations that it submits
/// repeatedly, in whatever order. The same in every process and on every machine.
class ModelSignature {
 public:
  void add(const OpSpec& spec);
  /// Returns 16 digits; empty if nothing was added.
  std::string text() const;

 private:
  std::set<std::uint64_t> operations_;
};

}  // namespace ronde
