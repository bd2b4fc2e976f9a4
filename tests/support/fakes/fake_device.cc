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

/// Once what it waits for has passed, the inputs are copied, the host's backend works on the
/// copies, and the way of its results to memory is queued.
class FakeDeviceOperation final : public Operation {
 public:
  /// A copy of memory that is read, written, or both; either may be null.
  struct Copy {
    const void* input;
    void* output;
    std::shared_ptr<Bytes> bytes;
  };
  using Start = std::function<std::unique_ptr<Operation>()>;

  FakeDeviceOperation(std::shared_ptr<FakeDevice> device, const Placement& place,
                      std::vector<Copy> copies, Start start)
      : device_(std::move(device)),
        after_(place.after.begin(), place.after.end()),
        copies_(std::move(copies)),
        start_(std::move(start)) {}

  bool poll() override {
    if (!inner_) {
      const auto is_over = [](const auto& event) { return event->passed(); };
      if (!std::all_of(after_.begin(), after_.end(), is_over)) return false;
      read();
      inner_ = start_();
    }
    if (!inner_->poll()) return false;
    event_ = device_->queue_result([copies = copies_] {
      for (const Copy& copy : copies) {
        if (copy.output != nullptr) std::memcpy(copy.output, copy.bytes->data(), size(copy));
      }
    });
    return true;
  }
  std::shared_ptr<const DeviceEvent> event() const override { return event_; }

 private:
  static std::size_t size(const Copy& copy) { return copy.bytes->size(); }

  void read() {
    device_->note("read");
    for (const Copy& copy : copies_) {
      if (copy.input != nullptr) std::memcpy(copy.bytes->data(), copy.input, size(copy));
    }
    const auto wants = [](const Copy& copy) { return copy.output != nullptr; };
    if (std::none_of(copies_.begin(), copies_.end(), wants)) device_->note("nobody");
  }

  const std::shared_ptr<FakeDevice> device_;
  const std::vector<std::shared_ptr<const DeviceEvent>> after_;
  const std::vector<Copy> copies_;
  const Start start_;
  std::unique_ptr<Operation> inner_;
  std::shared_ptr<const DeviceEvent> event_;
};

using Copy = FakeDeviceOperation::Copy;

Copy copy_of(const void* input, void* output, std::size_t count, DataType dtype) {
  return {input, output, std::make_shared<Bytes>(count * size_of(dtype))};
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
    const std::size_t own = call.counts[0];  // the tests gather as much of every rank
    return apart(call, &Backend::allgather, own, total(call.counts));
  }
  std::unique_ptr<Operation> alltoall(const AlltoallCall& call) override {
    return apart(call, &Backend::alltoall, total(call.send_counts), total(call.receive_counts));
  }
  std::unique_ptr<Operation> reducescatter(const ReducescatterCall& call) override {
    const std::size_t own = call.counts[0];  // the tests scatter evenly
    return apart(call, &Backend::reducescatter, total(call.counts), own);
  }
  std::unique_ptr<Operation> send(const SendCall& call) override {
    return apart(call, &Backend::send, call.count, 0);
  }
  std::unique_ptr<Operation> recv(const RecvCall& call) override {
    return apart(call, &Backend::recv, 0, call.count);
  }

  std::shared_ptr<DeviceStreams> device_streams() const override { return device_; }
  void abort() noexcept override {}
  void close() override {}
  StatsGroup stats() const override { return {"fake", {}}; }

 private:
  /// What the host's backend does with the copies.
  template <typename Call>
  using Work = std::unique_ptr<Operation> (Backend::*)(const Call&);

  template <typename Call>
  std::unique_ptr<Operation> segments(const Call& call, Work<Call> work) {
    std::vector<Copy> copies;
    std::vector<Segment> inner;
    for (const Segment& segment : call.segments) {
      copies.push_back(copy_of(segment.input, segment.output, segment.count, call.dtype));
      void* const memory = copies.back().bytes->data();
      inner.push_back({segment.input == nullptr ? nullptr : memory, memory, segment.count});
    }
    return begin(call.place, std::move(copies), [this, call, work, inner] {
      Call on_host = call;
      on_host.place = {};
      on_host.segments = inner;
      return (host_.*work)(on_host);
    });
  }

  /// The input and the output are two buffers, of which a message has one.
  template <typename Call>
  std::unique_ptr<Operation> apart(const Call& call, Work<Call> work, std::size_t sent,
                                   std::size_t received) {
    std::vector<Copy> copies;
    Call on_host = call;
    on_host.place = {};
    if constexpr (requires { call.input; }) {
      copies.push_back(copy_of(call.input, nullptr, sent, call.dtype));
      if (call.input != nullptr) on_host.input = copies.back().bytes->data();
    }
    if constexpr (requires { call.output; }) {
      copies.push_back(copy_of(nullptr, call.output, received, call.dtype));
      on_host.output = copies.back().bytes->data();
    }
    return begin(call.place, std::move(copies),
                 [this, on_host, work] { return (host_.*work)(on_host); });
  }

  std::unique_ptr<Operation> begin(const Placement& place, std::vector<Copy> copies,
                                   FakeDeviceOperation::Start start) {
    const bool is_here =
        place.device.index == device_->ordinal() || place.device.index == kNoDevice;
    if (place.device.kind != DeviceKind::Cuda || !is_here) throw Error("buffers of another device");
    return std::make_unique<FakeDeviceOperation>(device_, place, std::move(copies),
                                                 std::move(start));
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
