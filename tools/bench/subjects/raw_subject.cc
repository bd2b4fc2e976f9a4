// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/subjects/raw_subject.h"

#include <iostream>
#include <numeric>
#include <thread>

#include "backends/compose.h"
#include "ronde/error.h"
#include "ronde/plugin/choice.h"

namespace ronde::tool {
namespace {

using Clock = Transport::Clock;

/// Polls between two looks at the transport, which cost a system call.
constexpr int kPollsPerLook = 1024;
/// How long closing the connections may take.
constexpr double kClosingSeconds = 30.0;

std::size_t elements_of(const Request& request) {
  std::size_t count = 1;
  for (const std::int64_t extent : request.shape) count *= static_cast<std::size_t>(extent);
  return count;
}

Clock::time_point deadline(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

RawSubject::RawSubject(std::chrono::milliseconds patience)
    : config_(load_config_from_environment().config), patience_(patience) {
  BuiltIn built_in = compose_built_in(config_);
  transport_ = built_in.make_transport();
  peers_ = make_peers(topology().local_size > topology().local_cores);
  try {
    const auto& [name, factory] =
        choose_backend(built_in.backends, DeviceKind::Cpu, config_.cpu_backend, topology());
    BackendContext context = this->context();
    backend_ = create_backend(factory, context, config_.fusion_bytes);
  } catch (const UsageError&) {  // which all ranks throw
    transport_->close(true, deadline(kClosingSeconds));
    throw;
  }
}

RawSubject::~RawSubject() {
  if (backend_ == nullptr) return;
  for (const auto& device : devices_) device->abort();
  devices_.clear();
  backend_->abort();
  backend_.reset();
  transport_->close(false, Clock::now());
}

BackendContext RawSubject::context() {
  BackendContext context;
  context.topology = &transport_->topology();
  context.ranks.resize(static_cast<std::size_t>(topology().size));
  std::iota(context.ranks.begin(), context.ranks.end(), 0);
  context.exchange = [this](std::string_view blob) { return peers_->all_of(std::string(blob)); };
  context.deadline = deadline(config_.init_timeout_s);
  context.notify_peers = [] {};  // nobody sleeps: all poll
  context.warn = [this](const std::string& text) {
    if (topology().rank == 0) std::cerr << "ronde: " + text + '\n';
  };
  return context;
}

Backend& RawSubject::add(const BackendFactory& factory) {
  BackendContext context = this->context();
  context.host = backend_.get();
  devices_.push_back(create_backend(factory, context, config_.fusion_bytes));
  return *devices_.back();
}

void RawSubject::wait_until(const std::function<bool()>& condition, std::string_view what) {
  const Clock::time_point limit = Clock::now() + patience_;
  for (int polls = 1; !condition(); ++polls) {
    if (polls % kPollsPerLook != 0) continue;
    look_after_peers();
    if (Clock::now() < limit) continue;
    throw Error("rank " + std::to_string(topology().rank) + " waited " +
                std::to_string(patience_.count() / 1000) + " s for " + std::string(what) +
                "; another rank may have failed, or its GPU hangs");
  }
}

/// Yields, for ranks that outnumber cores, and throws if a peer is gone.
void RawSubject::look_after_peers() {
  std::this_thread::yield();
  const Incoming incoming = transport_->receive(Clock::time_point::min());
  if (incoming.kind == Incoming::Kind::PeerLost) {
    throw GroupError(incoming.peer,
                     "rank " + std::to_string(incoming.peer) + " was lost: " + incoming.bytes);
  }
}

void RawSubject::finish(Operation& operation, std::string_view what) {
  wait_until([&] { return operation.poll(); }, what);
  const std::shared_ptr<const DeviceEvent> event = operation.event();
  if (event) wait_until([&] { return event->passed(); }, what);
}

void RawSubject::run(Request request) {
  const std::string_view what = to_string(request.kind);
  finish(*start(request), what);
}

void RawSubject::release_peer_memory() {
  if (has_released_ || devices_.empty()) return;
  has_released_ = true;
  for (const auto& device : devices_) {
    // One that failed in its trial may have work queued, which peers' memory must outlive.
    const std::shared_ptr<DeviceStreams> streams = device->device_streams();
    if (streams && streams->drain(std::chrono::seconds(2)) != DrainStatus::Reached) device->abort();
    device->release_peer_memory();
  }
  peers_->barrier();
}

void RawSubject::close() {
  release_peer_memory();
  for (const auto& device : devices_) device->close();
  devices_.clear();
  backend_->close();
  backend_.reset();
  transport_->close(true, deadline(kClosingSeconds));
}

/// Parts are equal, as sizes are rounded up so.
std::unique_ptr<Operation> RawSubject::start(const Request& request) {
  const DataType dtype = real_type(request.dtype);  // of a complex number, its parts
  const std::size_t count = elements_of(request) * size_of(request.dtype) / size_of(dtype);
  const auto ranks = static_cast<std::size_t>(topology().size);
  const Scaling final = final_scaling(dtype, request.op, request.postscale, topology().size);
  segment_ = {request.input, request.output, count};
  switch (request.kind) {
    case Collective::Allreduce:
      return backend_->allreduce({.segments = {&segment_, 1},
                                  .dtype = dtype,
                                  .op = combining_op(request.op),
                                  .prescale = request.prescale,
                                  .final = final,
                                  .wire_dtype = request.wire_dtype});
    case Collective::Broadcast:
      return backend_->broadcast(
          {.segments = {&segment_, 1}, .dtype = dtype, .root = request.root});
    case Collective::Allgather:
      counts_.assign(ranks, count);
      return backend_->allgather(
          {.input = request.input, .output = request.output, .counts = counts_, .dtype = dtype});
    case Collective::Reducescatter:
      counts_.assign(ranks, count / ranks);
      return backend_->reducescatter({.input = request.input,
                                      .output = request.output,
                                      .counts = counts_,
                                      .dtype = dtype,
                                      .op = combining_op(request.op),
                                      .prescale = request.prescale,
                                      .final = final});
    case Collective::Alltoall:
      counts_.assign(ranks, count / ranks);
      return backend_->alltoall({.input = request.input,
                                 .output = request.output,
                                 .send_counts = counts_,
                                 .receive_counts = counts_,
                                 .largest_count = count / ranks,
                                 .dtype = dtype});
    default:
      break;
  }
  throw UsageError("--raw: " + std::string(to_string(request.kind)) +
                   " is done by the coordinator alone; leave --raw out");
}

}  // namespace ronde::tool
