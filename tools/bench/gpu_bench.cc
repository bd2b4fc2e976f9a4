// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu_bench.h"

#include <cstring>
#include <numeric>
#include <utility>

#include "backends/cuda/addresses.h"
#include "backends/cuda/cuda.h"
#include "backends/cuda/kernel_image.h"
#include "tools/bench/pattern.h"

namespace ronde::tool {
namespace {

constexpr std::size_t kHandOverBytes = 4096;

template <typename Number>
std::vector<Number> all_ranks(const Topology& topology) {
  std::vector<Number> ranks(static_cast<std::size_t>(topology.size));
  std::iota(ranks.begin(), ranks.end(), Number{0});
  return ranks;
}

}  // namespace

GpuBench::GpuBench(Session& session, const GpuAccess& access, std::size_t bytes)
    : session_(session),
      api_(driver_of(access)),
      device_(device_of(*api_, session.topology())),
      streams_(std::make_shared<cuda::CudaStreams>(api_)),
      stream_(streams_->make_stream(device_)),
      buffer_(streams_->context(device_), bytes),
      other_(streams_->context(device_), bytes),
      exchange_(session.raw().host(), session.topology().size) {
  const void* const image =
      access.kernel_image != nullptr ? access.kernel_image : cuda::kernel_image();
  for (const IpcHandover handover : kHandOvers) {
    pairs_.push_back(std::make_unique<Pair>(*this, image, handover));
  }
}

GpuBench::Pair::Pair(GpuBench& owner, const void* image, IpcHandover handover)
    : bench(*owner.streams_, owner.device_, image, kHandOverBytes, cuda::kBytesBehind),
      peers(bench, handover, true, all_ranks<int>(owner.session_.topology()),
            all_ranks<std::size_t>(owner.session_.topology()),
            static_cast<std::size_t>(owner.session_.topology().rank)) {}

GpuBench::~GpuBench() = default;

bool GpuBench::is_shared() const {
  return session_.topology().local_size > streams_->device_count();
}

void GpuBench::wait(const DeviceEvent& event, std::string_view what) {
  session_.raw().wait_until([&] { return event.passed(); }, what);
}

void GpuBench::end() {
  for (const std::unique_ptr<Pair>& pair : pairs_) pair->peers.forget();
  session_.raw().let_go();
}

void GpuBench::reduce(Backend& backend, std::span<const std::size_t> counts,
                      const std::string& set_up) {
  segments_.clear();
  std::size_t before = 0;
  for (const std::size_t count : counts) {
    void* const data = cuda::writable(buffer_.address() + before * sizeof(float));
    segments_.push_back({data, data, count});
    before += count;
  }
  const std::vector<std::shared_ptr<const DeviceEvent>> ready = {streams_->mark(*stream_)};
  const std::unique_ptr<Operation> operation = backend.allreduce(
      {.segments = segments_,
       .place = {.device = {.kind = DeviceKind::Cuda, .index = device_}, .after = ready}});
  session_.raw().finish(*operation, "an allreduce by set-up " + set_up);
}

void GpuBench::copy(std::size_t bytes) {
  // Copies of ranks that share the GPU would take turns.
  if (session_.topology().rank != 0) return;
  stream_->copy(other_.address(), buffer_.address(), bytes, "copying within the GPU");
  wait(*streams_->mark(*stream_), "a copy within the GPU");
}

std::vector<std::size_t> GpuBench::connect() {
  if (session_.topology().size == 1 || session_.topology().hosts() > 1) return {};
  const cuda::VisibleDevices all;
  std::vector<std::size_t> working;
  for (std::size_t which = 0; which < pairs_.size(); ++which) {
    std::string problem;
    Steps steps = pairs_[which]->peers.connect(exchange_, all, CudaOptions().ipc_patience, problem);
    session_.raw().wait_until([&] { return steps.poll(); }, "the trial of CUDA IPC");
    if (!problem.empty()) continue;
    working.push_back(which);
  }
  return working;
}

void GpuBench::hand_over(std::size_t which) {
  Pair& pair = *pairs_[which];
  pair.peers.record();
  // As in an operation, the ranks' threads tell each other that all have queued theirs.
  exchange_.start(device_);
  session_.raw().wait_until([&] { return exchange_.poll(); }, "a hand-over");
  pair.peers.wait_for_all();
  wait(*streams_->mark(pair.bench.stream()), "a hand-over on the GPU");
}

void GpuBench::write(const std::vector<float>& values) {
  stream_->copy(buffer_.address(), cuda::address_of(values.data()), values.size() * sizeof(float),
                "writing the buffer");
  wait(*streams_->mark(*stream_), "the buffer to be written");
}

std::vector<float> GpuBench::read(std::size_t count) {
  std::vector<float> values(count);
  stream_->copy(cuda::address_of(values.data()), buffer_.address(), count * sizeof(float),
                "reading the buffer");
  wait(*streams_->mark(*stream_), "the buffer to be read");
  return values;
}

void GpuBench::check(Backend& backend, std::span<const std::size_t> counts,
                     const std::string& what) {
  const Topology& topology = session_.topology();
  std::vector<float> values(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
  fill(DataType::F32, values.data(), values.size(),
       [&](std::size_t index) { return pattern(topology.rank, index); });
  write(values);
  reduce(backend, counts, what);
  values = read(values.size());
  session_.alike([&] {
    const std::string wrong =
        difference(DataType::F32, values.data(), values.size(), [&](std::size_t index) {
          int sum = 0;
          for (int rank = 0; rank < topology.size; ++rank) sum += pattern(rank, index);
          return sum;
        });
    if (!wrong.empty()) throw Error("the sum by " + what + " is wrong: " + wrong);
  });
  // Sums in place would grow from call to call.
  std::fill(values.begin(), values.end(), 0.0F);
  write(values);
}

}  // namespace ronde::tool
