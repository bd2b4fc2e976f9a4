// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ronde/algorithms.h"
#include "ronde/plugin/fabric.h"
#include "ronde/plugin/factory.h"

namespace ronde {

/// Makes this rank's end of a network. Called on all ranks at the same time, while the group
/// starts; may use BackendContext::exchange, the same number of times on every rank. May throw as
/// BackendFactory::create.
using MakeFabric = std::function<std::unique_ptr<Fabric>(BackendContext&)>;

/// One fabric for all backends of a Runtime that use it.
///
/// Thread-safety: get() may be called for several process sets at the same time.
class SharedFabric {
 public:
  /// `make_for_set`: for a process set where the backend of all ranks uses no fabric; must not
  /// exchange. May be empty.
  explicit SharedFabric(MakeFabric make, MakeFabric make_for_set = {})
      : make_(std::move(make)), make_for_set_(std::move(make_for_set)) {}

  /// Makes the fabric for the backend of all ranks, and returns that one for those of process sets.
  /// Throws UsageError for one of these if there is none.
  std::shared_ptr<Fabric> get(BackendContext& context);

 private:
  const MakeFabric make_, make_for_set_;
  std::shared_ptr<Fabric> made_;
};

/// How a backend uses a fabric; equal on all ranks.
struct FabricBackendOptions {
  std::string name = "fabric";                   ///< Backend::name()
  AlgorithmTable algorithms = AlgorithmTable();  ///< chooses the algorithms
  /// Returns the algorithm of a call of so many bytes instead, such as to measure several in turn;
  /// nullopt: `algorithms` chooses. Called as an operation starts; must return the same on all
  /// ranks. May be empty.
  std::function<std::optional<Algorithm>(Collective, std::uint64_t bytes)> in_turn = {};
  /// Sums and products of floats are computed in rank order (RONDE_EXACT).
  bool exact = false;
};

/// Makes a backend for all collectives and messages of the ranks of `context`, by algorithms over
/// `fabric`. It wants its data packed. `owns_fabric`: abort() and close() also end the fabric.
std::unique_ptr<Backend> make_fabric_backend(std::shared_ptr<Fabric> fabric,
                                             const BackendContext& context,
                                             const FabricBackendOptions& options, bool owns_fabric);

/// Returns a factory of backends over a network of the program's own, which only has to implement
/// Fabric, for ronde::register_backend.
BackendFactory fabric_backend_factory(std::shared_ptr<SharedFabric> fabric,
                                      const FabricBackendOptions& options);

}  // namespace ronde
