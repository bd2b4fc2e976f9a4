// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "backends/vendor/api_table.h"
#include "ronde/plugin/fabric.h"
#include "ronde/plugin/factory.h"

/// The fabric of UCX, for code that sets up a Runtime.
namespace ronde {

struct UcxOptions {
  /// A value of UCX_TLS that Ronde has set for MPI, which is ignored here.
  std::string ignored_transports = {};
  /// Finds the functions of UCX; tests replace it.
  vendor::SymbolLookup symbols = vendor::dynamic_symbols();
};

/// Makes the fabric of a context's ranks, which all call it at the same time: it exchanges their
/// addresses once. Throws UsageError if UCX cannot be used.
std::function<std::unique_ptr<Fabric>(BackendContext&)> ucx_fabric_maker(const UcxOptions& options);

/// Returns why UCX cannot be used here, and what to do; empty if it can.
std::string ucx_problem(const vendor::SymbolLookup& symbols = vendor::dynamic_symbols());

/// Returns the version of the UCX that is found here, such as "1.13.1"; empty if there is none.
std::string ucx_version(const vendor::SymbolLookup& symbols = vendor::dynamic_symbols());

}  // namespace ronde
