// SPDX-License-Identifier: Apache-2.0
// Ranks connect when their backend is made. A shared GPU or a mix of versions is found before NCCL
// is called; then rank 0 makes NCCL's id, with which the thread of each rank connects.
#include "backends/nccl/channel.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <utility>

#include "backends/gpu/base/abandon.h"
#include "backends/gpu/base/host_exchange.h"
#include "backends/gpu/driver/device_query.h"
#include "core/src/base/fields.h"
#include "core/src/base/rank_list.h"

namespace ronde::nccl {
namespace {

/// Bytes of the fusion buffer: two halves with an aligned share of each rank.
std::size_t buffer_bytes(std::uint64_t wanted, std::size_t ranks) {
  constexpr std::uint64_t kDefault = std::uint64_t{64} << 20;  // without fusion
  const auto bytes = static_cast<std::size_t>(wanted > 0 ? wanted : kDefault);
  return std::max(bytes / 16 * 16, 2 * 16 * ranks);
}

using Clock = std::chrono::steady_clock;

std::string fusion_text(std::size_t bytes) {
  return "the fusion buffer of " + std::to_string(bytes) + " bytes";
}

/// Runs a task in which NCCL waits for all ranks. Returns an empty string, or "late" if it has not
/// ended in three quarters of the time that is left (the rest is for the ranks' report), or a rank
/// was lost meanwhile.
std::string run_task(const std::shared_ptr<Channel>& channel, const BackendContext& context,
                     std::function<void()> task) {
  const auto now = Clock::now();
  const auto timeout = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(channel->options.init_timeout_s));
  const auto deadline = now + std::min(timeout, context.deadline - now) / 4 * 3;
  channel->communicator->start(std::move(task));
  const auto is_over = [&] {
    return channel->communicator->poll() || (context.has_failed && context.has_failed());
  };
  if (gpu::poll_until(deadline, is_over) && channel->communicator->poll()) return {};
  channel->communicator->abort(Clock::now());
  return "late";
}

}  // namespace

Channel::Channel(std::shared_ptr<const NcclApi> api, const NcclOptions& the_options,
                 std::size_t the_rank, std::size_t the_size,
                 std::shared_ptr<cuda::CudaStreams> the_streams, int device)
    : options(the_options),
      rank(the_rank),
      size(the_size),
      streams(std::move(the_streams)),
      resources(*streams, device, options.kernel_image, buffer_bytes(options.fusion_bytes, size)),
      communicator(std::make_shared<BlockingCommunicator>(std::move(api), resources.context(),
                                                          static_cast<int>(size))) {
  // A thread that NCCL blocks may still queue work.
  streams->drain_after([ends = communicator](auto deadline) { return ends->is_idle(deadline); });
}

Channel::~Channel() {
  using Context = std::shared_ptr<const cuda::DeviceContext>;
  // An abort after connecting has failed may hang: what NCCL uses then is left.
  if (!communicator->abort(Clock::now() + options.abort_bound)) {
    gpu::abandon(std::make_unique<Context>(resources.context()));
  } else if (window_memory != nullptr) {
    resources.context()->release(communicator->api().free, window_memory);
  }
}

void Channel::connect(const UniqueId& id) {
  communicator->connect(id, static_cast<int>(rank));
  const NcclApi& api = communicator->api();
  if (!options.registration_cache || !api.has_windows()) return;
  communicator->call("allocating " + fusion_text(resources.fusion_bytes()) + " on GPU " +
                         std::to_string(resources.context()->index()),
                     api.allocate, &window_memory, resources.fusion_bytes());
}

void Channel::register_fusion() {
  if (window_memory == nullptr) return;
  const std::string doing = "registering " + fusion_text(resources.fusion_bytes());
  communicator->call(doing, communicator->api().register_window, communicator->handle(doing),
                     window_memory, resources.fusion_bytes(), &window, kSymmetricWindow);
}

void Channel::close() {
  if (window != nullptr) {
    const std::string doing = "deregistering the fusion buffer";
    communicator->call(doing, communicator->api().deregister_window, communicator->handle(doing),
                       window);
  }
  communicator->close();
}

std::vector<std::string> in_step(const BackendContext& context,
                                 const std::function<std::string()>& step) {
  std::string own;
  const std::string problem = gpu::problem_of([&] { own = step(); });
  std::vector<std::string> results;
  for (const std::string& blob : context.exchange(pack_fields({problem, own}))) {
    const int rank = context.ranks.at(results.size());
    const std::vector<std::string> fields = unpack_fields_from(rank, blob, 2);
    if (!fields[0].empty()) throw Error(rank_name(rank) + ": " + fields[0]);
    results.push_back(fields[1]);
  }
  return results;
}

std::string describe_rank(const Libraries& libraries, const NcclOptions& options, int device) {
  const bool may_share =
      options.ranks_may_share_gpus && libraries.nccl_version >= kOldestWithSharedGpus;
  cuda::Gpu gpu;
  const std::string problem = cuda::describe_gpu(*libraries.driver, device, gpu);
  if (!problem.empty()) throw Error(problem);
  return pack_fields(
      {version_text(libraries.nccl_version), gpu.uuid, gpu.pci_id, may_share ? "may share" : ""});
}

/// NCCL compares hosts and PCI ids. The UUID finds a shared GPU also if a machine counts as two
/// hosts.
std::string conflict_of(const BackendContext& context, const std::vector<std::string>& ranks) {
  struct First {
    std::string rank, version;
    bool may_share;
  };
  std::map<std::string, First> seen;  // by GPU; the first rank of all by an empty text
  std::string mixed;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::vector<std::string> fields = unpack_fields_from(context.ranks[i], ranks[i], 4);
    const std::string& uuid = fields[1];
    const std::string& pci_id = fields[2];
    const First own{rank_name(context.ranks[i]), fields[0], !fields[3].empty()};
    for (const std::string& place :
         {uuid, std::to_string(context.topology->host_of[i]) + " " + pci_id}) {
      const auto [first, is_new] = seen.emplace(place, own);
      if (is_new || first->second.rank == own.rank) continue;
      if (first->second.may_share && own.may_share) continue;
      return first->second.rank + " and " + own.rank + " are both on " + uuid + " (" + pci_id +
             "), but NCCL needs a GPU for each rank: give each its own by CUDA_VISIBLE_DEVICES, "
             "set RONDE_GPU_BACKEND=cuda, by which ranks share one, or set "
             "NCCL_MULTI_RANK_GPU_ENABLE=1 on all ranks with NCCL " +
             version_text(kOldestWithSharedGpus) + " or newer (this is " + own.version + ")";
    }
    const First& first = seen.emplace("", own).first->second;
    if (first.version == own.version || !mixed.empty()) continue;
    mixed = first.rank + " has NCCL " + first.version + ", " + own.rank + " has " + own.version +
            ": they do not connect. Give all ranks the same one";
  }
  return mixed;
}

std::shared_ptr<Channel> connect(const Libraries& libraries, const NcclOptions& options,
                                 const BackendContext& context,
                                 const std::shared_ptr<cuda::CudaStreams>& streams, int device) {
  const auto rank = static_cast<std::size_t>(context.topology->rank);
  const auto size = static_cast<std::size_t>(context.topology->size);
  std::shared_ptr<Channel> channel;
  UniqueId id{};
  const std::vector<std::string> ids = in_step(context, [&]() -> std::string {
    channel = std::make_shared<Channel>(libraries.nccl, options, rank, size, streams, device);
    if (rank == 0) {
      const cuda::Current current(*channel->resources.context());
      channel->communicator->call("connecting the ranks", libraries.nccl->get_unique_id, &id);
    }
    return {id.bytes.data(), id.bytes.size()};
  });
  std::memcpy(id.bytes.data(), ids[0].data(), std::min(ids[0].size(), id.bytes.size()));
  const std::function<void()> tasks[] = {[channel, id] { channel->connect(id); },
                                         [channel] { channel->register_fusion(); }};
  for (const std::function<void()>& task : tasks) {
    // Where a rank has failed, its error counts, and not that others have waited for it.
    const std::vector<std::string> ends =
        in_step(context, [&] { return run_task(channel, context, task); });
    if (std::ranges::count(ends, "") == context.topology->size) continue;
    const std::string all = std::to_string(size) + " ranks";
    throw Error("NCCL failed while connecting " + all + ": not all of the " + all +
                " have come in time");
  }
  return channel;
}

}  // namespace ronde::nccl
