// SPDX-License-Identifier: Apache-2.0
#include "backends/ucx/ucx.h"

#include <cstring>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "backends/ucx/ucx_fabric.h"
#include "core/src/base/fields.h"
#include "core/src/base/system.h"
#include "ronde/error.h"

namespace ronde {
namespace {

using Job = std::uint16_t;

std::shared_ptr<ucx::UcxWorker> make_worker(const Topology& topology, const UcxOptions& options) {
  const ucx::LoadedUcx ucx = ucx::load_ucx(options.symbols);
  if (!ucx.api) throw UsageError(ucx.problem);
  if (topology.size > 1 << ucx::kRankBits) {
    throw UsageError("the fabric of UCX connects " + std::to_string(1 << ucx::kRankBits) +
                     " ranks at most");
  }
  return std::make_shared<ucx::UcxWorker>(ucx.api, topology.rank, topology.size,
                                          options.transports_not_meant);
}

std::unique_ptr<Fabric> make_fabric(BackendContext& context, const UcxOptions& options) {
  std::shared_ptr<ucx::UcxWorker> worker;
  // A problem if there is one; a random number, of which rank 0's is the job's; the address. A rank
  // that has no UCX takes part, or the others would wait for it.
  std::string own;
  try {
    worker = make_worker(*context.topology, options);
    own = pack_fields({"", random_bytes(sizeof(Job)), worker->address()});
  } catch (const std::exception& error) {
    own = pack_fields({error.what(), "", ""});
  }
  Job job = 0;
  std::vector<std::string> addresses;
  for (const std::string& blob : context.exchange(own)) {
    const auto rank = static_cast<int>(addresses.size());
    std::vector<std::string> fields = unpack_fields_from(rank, blob, 3);
    if (!fields[0].empty()) {
      throw UsageError("rank " + std::to_string(rank) + " cannot use UCX: " + fields[0]);
    }
    if (fields[1].size() != sizeof job) fail_unreadable(rank);
    if (rank == 0) std::memcpy(&job, fields[1].data(), sizeof job);
    addresses.push_back(std::move(fields[2]));
  }
  worker->set_addresses(std::move(addresses));
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
