// SPDX-License-Identifier: Apache-2.0
#include "backends/ucx/ucx.h"

#include <cstring>
#include <utility>
#include <vector>

#include "backends/ucx/ucx_fabric.h"
#include "core/src/base/system.h"
#include "ronde/error.h"

namespace ronde {
namespace {

using Job = std::uint16_t;

std::unique_ptr<Fabric> make_fabric(BackendContext& context, const UcxOptions& options) {
  const ucx::LoadedUcx ucx = ucx::load_ucx(options.symbols);
  if (!ucx.api) throw UsageError(ucx.problem);
  const Topology& topology = *context.topology;
  if (topology.size > 1 << ucx::kRankBits) {
    throw UsageError("the fabric of UCX connects " + std::to_string(1 << ucx::kRankBits) +
                     " ranks at most");
  }
  auto worker = std::make_shared<ucx::UcxWorker>(ucx.api, topology.rank, topology.size);
  // A random number, of which rank 0's is the job's, and the address.
  std::vector<std::string> blobs = context.exchange(random_bytes(sizeof(Job)) + worker->address());
  Job job = 0;
  std::memcpy(&job, blobs.at(0).data(), sizeof job);
  for (std::string& blob : blobs) blob.erase(0, sizeof job);
  worker->set_addresses(std::move(blobs));
  return std::make_unique<ucx::UcxFabric>(std::move(worker), job, options);
}

}  // namespace

std::function<std::unique_ptr<Fabric>(BackendContext&)> ucx_fabric_maker(
    const UcxOptions& options) {
  return [options](BackendContext& context) { return make_fabric(context, options); };
}

std::string ucx_problem(const vendor::SymbolLookup& symbols) {
  return ucx::load_ucx(symbols).problem;
}

std::string ucx_version(const vendor::SymbolLookup& symbols) {
  return ucx::load_ucx(symbols).version;
}

}  // namespace ronde
