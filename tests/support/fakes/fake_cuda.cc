// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fakes/fake_cuda.h"

#include <cstdlib>
#include <ostream>
#include <stdexcept>

#include "backends/gpu/kernels/kernel_list.h"
#include "backends/gpu/kernels/segments.h"
#include "tests/support/fakes/fake_cuda_state.h"

namespace ronde::test {
namespace {

using namespace ronde::cuda::kernels;

/// Its threads run one after the other.
template <typename Arguments>
FakeCuda::Kernel grid_of(void (*thread)(const Arguments&, const Place&)) {
  return [thread](const FakeCuda::Launch& launch) {
    return [thread, launch, how = launch.argument<Arguments>(0)] {
      for (unsigned block = 0; block < launch.blocks; ++block) {
        for (unsigned i = 0; i < launch.threads; ++i) thread(how, {block, launch.blocks, i});
      }
    };
  };
}

}  // namespace

std::map<std::string, FakeCuda::Kernel> fake::ronde_kernels() {
  return {
#define COPY(name, From, To) {#name, grid_of(&copy_segments<From, To>)},
#define REDUCE(name, Element) {#name, grid_of(&reduce_elements<Element>)},
      RONDE_COPY_KERNELS(COPY) RONDE_REDUCE_KERNELS(REDUCE)};
}

FakeCuda::FakeCuda(const Options& options) : state_(std::make_unique<State>()) {
  state_->options = options;
  state_->random.seed(options.disorder);
  state_->streams[nullptr];  // the default one
  state_->retained.resize(static_cast<std::size_t>(options.devices));
  fake::add_driver(state_->symbols);
  State* none = nullptr;
  if (!fake::current_state.compare_exchange_strong(none, state_.get())) {
    throw std::logic_error("there is a FakeCuda already");
  }
}

FakeCuda::~FakeCuda() {
  const fake::Hidden hidden;
  fake::current_state = nullptr;
  for (const auto& [address, memory] : state_->host_allocations) std::free(writable(address));
  state_.reset();
}

vendor::SymbolLookup FakeCuda::lookup() const {
  return library_of(state_->symbols);
}

std::shared_ptr<const DriverApi> FakeCuda::api() const {
  const LoadedDriver driver = load_driver(lookup());
  if (!driver.api) throw std::logic_error(driver.problem);
  return driver.api;
}

void FakeCuda::fail_on(int device, const std::string& symbol, Result result, int times,
                       int skipped) {
  if (state_->symbols.count(symbol) == 0) throw std::logic_error("there is no " + symbol);
  const std::lock_guard lock(state_->mutex);
  state_->failures[symbol] = {device, result, times, skipped};
}

void FakeCuda::forbid_ipc(DevicePointer base) {
  const std::lock_guard lock(state_->mutex);
  state_->allocations.at(base).is_ipc_capable = false;
}

void FakeCuda::hold_new(int device) {
  const std::lock_guard lock(state_->mutex);
  state_->held_devices.insert(device);
}

void FakeCuda::release_all() {
  const std::lock_guard lock(state_->mutex);
  state_->held_devices.clear();
  for (auto& [handle, stream] : state_->streams) stream.is_held = false;
  state_->run();
}

bool FakeCuda::is_idle() const {
  const std::lock_guard lock(state_->mutex);
  return std::all_of(state_->streams.begin(), state_->streams.end(),
                     [](const auto& each) { return each.second.queue.empty(); });
}

int FakeCuda::calls(const std::string& symbol) const {
  if (state_->symbols.count(symbol) == 0) throw std::logic_error("there is no " + symbol);
  const std::lock_guard lock(state_->mutex);
  return state_->calls[symbol];
}

void FakeCuda::hold(StreamHandle stream) {
  const std::lock_guard lock(state_->mutex);
  state_->streams.at(stream).is_held = true;
}

void FakeCuda::release(StreamHandle stream) {
  const std::lock_guard lock(state_->mutex);
  state_->streams.at(stream).is_held = false;
  state_->run();
}

void FakeCuda::begin_capture(StreamHandle stream, bool waits_for_default) {
  const std::lock_guard lock(state_->mutex);
  state_->captured.insert(stream);
  state_->default_is_unusable = waits_for_default;
}

void FakeCuda::end_capture() {
  const std::lock_guard lock(state_->mutex);
  state_->captured.clear();
  state_->default_is_unusable = false;
}

Result FakeCuda::queue(StreamHandle stream, std::function<bool()> is_over) {
  const std::lock_guard lock(state_->mutex);
  return state_->enqueue(stream, std::move(is_over));
}

void FakeCuda::ask_again() {
  const std::lock_guard lock(state_->mutex);
  state_->run();
}

void FakeCuda::add_kernel(const std::string& name, Kernel kernel) {
  const std::lock_guard lock(state_->mutex);
  state_->kernels[name] = std::move(kernel);
}

FakeCuda::Live FakeCuda::live() const {
  const std::lock_guard lock(state_->mutex);
  const auto count = [](const auto& items) { return static_cast<int>(items.size()); };
  Live live;
  for (const int retained : state_->retained) live.contexts += retained;
  for (const auto& [handle, stream] : state_->streams) {
    if (handle != nullptr && !stream.is_destroyed) ++live.streams;  // the default one is not made
  }
  live.events = count(state_->events);
  live.allocations = count(state_->allocations);
  live.host_allocations = count(state_->host_allocations);
  live.host_registrations = count(state_->host_registrations);
  live.mappings = count(state_->mappings);
  live.modules = count(state_->modules);
  return live;
}

int FakeCuda::contexts_on(int device) const {
  const std::lock_guard lock(state_->mutex);
  return state_->retained.at(static_cast<std::size_t>(device));
}

std::ostream& operator<<(std::ostream& out, const FakeCuda::Live& live) {
  return out << live.contexts << " contexts, " << live.streams << " streams, " << live.events
             << " events, " << live.allocations << " allocations, " << live.host_allocations
             << " host allocations, " << live.host_registrations << " host registrations, "
             << live.mappings << " mappings, " << live.modules << " modules";
}

}  // namespace ronde::test
