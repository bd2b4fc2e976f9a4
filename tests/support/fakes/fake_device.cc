// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fakes/fake_device.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace ronde::test {
namespace {

/// Some point of a FakeDevice.
class FakeEvent final : public DeviceEvent {
 public:
  FakeEvent(std::shared_ptr<FakeDevice> device, std::string name, std::shared_ptr<bool> has_passed)
      : device_(std::move(device)), name_(std::move(name)), has_passed_(std::move(has_passed)) {}

  bool passed() const override { return device_->passed(*has_passed_); }
  void order(void* stream) const override { device_->order(name_, has_passed_, stream); }

 private:
  const std::shared_ptr<FakeDevice> device_;
  const std::string name_;
  const std::shared_ptr<bool> has_passed_;  ///< guarded by the device's lock
};

char streams['Z' - 'A' + 1];

std::string name_of(void* stream) {
  if (stream == nullptr) return "none";
  return {static_cast<char>('A' + (static_cast<char*>(stream) - streams))};
}

}  // namespace

void* FakeDevice::stream(char name) {
  return &streams[name - 'A'];
}

void FakeDevice::pass() {
  const std::lock_guard lock(mutex_);
  holds_results_ = holds_marks_ = false;
  for (const Queued& queued : queued_) {
    if (queued.write) queued.write();
    *queued.has_passed = true;
  }
  queued_.clear();
}

void FakeDevice::wait_asked(std::uint64_t times) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this, goal = asked_ + times] { return asked_ >= goal; });
}

std::vector<std::string> FakeDevice::log() const {
  const std::lock_guard lock(mutex_);
  return log_;
}

void FakeDevice::note(const std::string& text) {
  const std::lock_guard lock(mutex_);
  log_.push_back(text);
}

std::shared_ptr<const DeviceEvent> FakeDevice::mark(int device, void* stream) {
  if (device != ordinal_) throw UsageError("no device " + std::to_string(device) + " here");
  const std::lock_guard lock(mutex_);
  const std::string name = "mark" + std::to_string(++marks_);
  log_.push_back(name + " " + name_of(stream));
  const auto before = behind_.find(stream);
  const bool is_behind = before != behind_.end() && !*before->second;
  return queue(name, holds_marks_ || is_behind, nullptr);
}

std::shared_ptr<const DeviceEvent> FakeDevice::queue_result(std::function<void()> write) {
  const std::lock_guard lock(mutex_);
  const std::string name = "result" + std::to_string(++results_);
  log_.push_back(name);
  return queue(name, holds_results_, std::move(write));
}

/// Under the lock.
std::shared_ptr<const DeviceEvent> FakeDevice::queue(const std::string& name, bool is_held,
                                                     std::function<void()> write) {
  if (!is_held && write) write();
  const auto has_passed = std::make_shared<bool>(!is_held);
  if (is_held) queued_.push_back({has_passed, std::move(write)});
  return std::make_shared<FakeEvent>(shared_from_this(), name, has_passed);
}

std::shared_ptr<const DeviceEvent> FakeDevice::copy(int, void* to, const void* from,
                                                    std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  log_.emplace_back("copy");
  return queue("copy", holds_results_, [=] { std::memcpy(to, from, bytes); });
}

DrainStatus FakeDevice::drain(std::chrono::nanoseconds bound) noexcept {
  std::unique_lock lock(mutex_);
  log_once("drain");
  // Nothing ends that it hangs.
  if (!changed_.wait_for(lock, bound, [this] { return !hangs_; })) return DrainStatus::NotYet;
  queued_.clear();
  return failure_.empty() ? DrainStatus::Reached : DrainStatus::Unknown;
}

void FakeDevice::cancel_waits() noexcept {
  const std::lock_guard lock(mutex_);
  log_once("cancel waits");
}

/// Under the lock.
void FakeDevice::log_once(const std::string& text) {
  if (std::find(log_.begin(), log_.end(), text) == log_.end()) log_.push_back(text);
}

bool FakeDevice::passed(const bool& flag) {
  const std::lock_guard lock(mutex_);
  ++asked_;
  changed_.notify_all();
  if (!failure_.empty()) throw Error(failure_);
  return flag;
}

void FakeDevice::order(const std::string& event, std::shared_ptr<const bool> has_passed,
                       void* stream) {
  const std::lock_guard lock(mutex_);
  behind_[stream] = std::move(has_passed);
  log_.push_back("order " + event + " " + name_of(stream));
  for (const std::string& text : {failure_, order_failure_}) {
    if (!text.empty()) throw Error(text);
  }
}

namespace {

using Bytes = std::vector<std::byte>;

/// Once what it waits for has passed, the host's backend works on the inputs, and the way of its
/// results to memory is queued.
class FakeDeviceOperation final : public Operation {
 public:
  struct Result {
    void* output;  ///< may be null
    std::shared_ptr<Bytes> bytes;
  };
  using Start = std::function<std::unique_ptr<Operation>()>;

  FakeDeviceOperation(std::shared_ptr<FakeDevice> device, const Placement& place,
                      std::vector<Result> results, Start start)
      : device_(std::move(device)),
        after_(place.after.begin(), place.after.end()),
        results_(std::move(results)),
        start_(std::move(start)) {}

  bool poll() override {
    if (!inner_) {
      const auto is_over = [](const auto& event) { return event->passed(); };
      if (!std::all_of(after_.begin(), after_.end(), is_over)) return false;
      device_->note("read");
      const auto is_unwanted = [](const Result& result) { return result.output == nullptr; };
      if (std::ranges::all_of(results_, is_unwanted)) device_->note("nobody");
      inner_ = start_();
    }
    if (!inner_->poll()) return false;
    event_ = device_->queue_result([results = results_] {
      for (const auto& [output, bytes] : results) {
        if (output != nullptr) std::memcpy(output, bytes->data(), bytes->size());
      }
    });
    return true;
  }
  std::shared_ptr<const DeviceEvent> event() const override { return event_; }

 private:
  const std::shared_ptr<FakeDevice> device_;
  const std::vector<std::shared_ptr<const DeviceEvent>> after_;
  const std::vector<Result> results_;
  const Start start_;
  std::unique_ptr<Operation> inner_;
  std::shared_ptr<const DeviceEvent> event_;
};

using Result = FakeDeviceOperation::Result;

Result result_of(void* output, std::size_t count, DataType dtype) {
  return {output, std::make_shared<Bytes>(count * size_of(dtype))};
}

std::size_t total(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

class FakeDeviceBackend final : public Backend {
 public:
  FakeDeviceBackend(Backend& host, std::shared_ptr<FakeDevice> device)
      : host_(host), device_(std::move(device)) {}

  std::string_view name() const noexcept override { return "fake"; }
  Capabilities capabilities() const override {
    Capabilities capabilities;
    capabilities.dtypes.set();
    capabilities.device = DeviceKind::Cuda;
    capabilities.wants_packed = false;
    return capabilities;
  }

  std::unique_ptr<Operation> allreduce(const AllreduceCall& call) override {
    return segments(call, &Backend::allreduce);
  }
  std::unique_ptr<Operation> broadcast(const BroadcastCall& call) override {
    return segments(call, &Backend::broadcast);
  }
  std::unique_ptr<Operation> allgather(const AllgatherCall& call) override {
    return apart(call, &Backend::allgather, total(call.counts));
  }
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override {
    return apart(call, &Backend::alltoall, total(call.receive_counts));
  }
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override {
    // The tests scatter evenly.
    return apart(call, &Backend::reducescatter, call.counts[0]);
  }
  std::unique_ptr<Operation> send(const SendCall& call) override {
    return begin(call, &Backend::send, {});
  }
  std::unique_ptr<Operation> recv(const RecvCall& call) override {
    return apart(call, &Backend::recv, call.count);
  }

  std::shared_ptr<DeviceStreams> device_streams() const override { return device_; }
  void abort() noexcept override {}
  void close() override {}
  StatsGroup stats() const override { return {"fake", {}}; }

 private:
  template <typename Call>
  using Work = std::unique_ptr<Operation> (Backend::*)(const Call&);

  template <typename Call>
  std::unique_ptr<Operation> segments(const Call& call, Work<Call> work) {
    std::vector<Result> results;
    std::vector<Segment> inner;
    for (const Segment& segment : call.segments) {
      results.push_back(result_of(segment.output, segment.count, call.dtype));
      inner.push_back({segment.input, results.back().bytes->data(), segment.count});
    }
    return begin(
        call,
        [work, inner](Backend& host, Call on_host) {
          on_host.segments = inner;
          return (host.*work)(on_host);
        },
        std::move(results));
  }

  template <typename Call>
  std::unique_ptr<Operation> apart(Call call, Work<Call> work, std::size_t received) {
    const Result result = result_of(call.output, received, call.dtype);
    call.output = result.bytes->data();
    return begin(call, work, {result});
  }

  /// `work`: what the host's backend does with the call.
  template <typename Call, typename Work>
  std::unique_ptr<Operation> begin(Call call, Work work, std::vector<Result> results) {
    const Placement place = std::exchange(call.place, {});
    const bool is_here =
        place.device.index == device_->ordinal() || place.device.index == kNoDevice;
    if (place.device.kind != DeviceKind::Cuda || !is_here) throw Error("buffers of another device");
    return std::make_unique<FakeDeviceOperation>(
        device_, place, std::move(results),
        [this, call, work] { return std::invoke(work, host_, call); });
  }

  Backend& host_;
  const std::shared_ptr<FakeDevice> device_;
};

}  // namespace

BackendFactory fake_device_factory(std::shared_ptr<FakeDevice> device) {
  BackendFactory factory;
  factory.device = DeviceKind::Cuda;
  factory.serves_sets = true;
  factory.create = [device = std::move(device)](BackendContext& context) {
    return std::make_unique<FakeDeviceBackend>(*context.host, device);
  };
  return factory;
}

DeviceGroup::DeviceGroup(int size) : group(size) {
  for (int rank = 0; rank < size; ++rank) devices.push_back(std::make_shared<FakeDevice>(rank + 3));
}

RuntimeOptions DeviceGroup::options(int rank, Config config) const {
  RuntimeOptions made = options_of(group, rank, std::move(config));
  made.device_backends["fake"] = fake_device_factory(devices[static_cast<std::size_t>(rank)]);
  return made;
}

void DeviceGroup::run(const std::function<void(int, Runtime&, FakeDevice&)>& body,
                      const Change& change) const {
  run_ranks(static_cast<int>(devices.size()), [&](int rank) {
    RuntimeOptions changed = options(rank);
    if (change) change(rank, changed);
    Runtime runtime(std::move(changed));
    body(rank, runtime, device(rank));
    device(rank).pass();
    runtime.shutdown();
  });
}

Request on_device(Request request, const FakeDevice& device) {
  request.device = {DeviceKind::Cuda, device.ordinal()};
  request.stream = FakeDevice::stream('A');
  return request;
}

}  // namespace ronde::test
