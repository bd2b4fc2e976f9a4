// SPDX-License-Identifier: Apache-2.0
#include "ronde/world.h"

#include <limits>
#include <utility>

#include "api/src/process.h"
#include "ronde/error.h"
#include "ronde/ronde.h"

namespace ronde {
namespace {

HostedRuntime& checked(const std::shared_ptr<HostedRuntime>& runtime) {
  if (runtime) return *runtime;
  throw UsageError("a ronde::World was used that had been moved from");
}

HostedRuntime::Use use(const std::shared_ptr<HostedRuntime>& runtime, std::string_view function) {
  return HostedRuntime::Use(checked(runtime), function, runtime);
}

}  // namespace

World::World(std::string name, const InitOptions& options)
    : runtime_(Process::instance().make_world({.init = options, .name = std::move(name)})) {}

World::World(std::string name, ProcessSet of, const std::vector<int>& ranks)
    : runtime_(Process::instance().make_world(
          {.name = std::move(name), .ranks = RanksOfSet{.of = of, .ranks = ranks}})) {}

World::~World() {
  end();
}

World::World(World&& other) noexcept = default;

World& World::operator=(World&& other) noexcept {
  if (this == &other) return *this;
  end();
  runtime_ = std::move(other.runtime_);
  return *this;
}

void World::end() noexcept {
  if (!runtime_) return;
  runtime_->leave("its World was destroyed without a shutdown()");
  Process::instance().forget(*runtime_);
}

const std::string& World::name() const noexcept {
  static const std::string none;
  return runtime_ ? runtime_->name() : none;
}

ProcessSet World::set() const noexcept {
  constexpr ProcessSet kNone{.world = std::numeric_limits<std::uint32_t>::max()};
  return runtime_ ? runtime_->set() : kNone;
}

int World::rank() const {
  return use(runtime_, "World::rank()")->topology().rank;
}

int World::size() const {
  return use(runtime_, "World::size()")->topology().size;
}

const Topology& World::topology() const {
  return use(runtime_, "World::topology()")->topology();
}

Runtime& World::runtime() const {
  return *use(runtime_, "World::runtime()");
}

ProcessSet World::add_process_set(const std::vector<int>& ranks) const {
  return use(runtime_, "World::add_process_set()")->add_process_set(ranks);
}

ProcessSet World::create_process_set(const std::vector<int>& ranks, const std::string& tag) const {
  return use(runtime_, "World::create_process_set()")->create_process_set(ranks, tag);
}

void World::shutdown(std::optional<std::chrono::nanoseconds> limit) {
  HostedRuntime& runtime = checked(runtime_);
  const auto forget = [&] {  // unless it was refused, or another thread is in it
    if (!runtime.is_there()) Process::instance().forget(runtime);
  };
  try {
    runtime.shutdown(limit);
  } catch (...) {
    forget();
    throw;
  }
  forget();
}

}  // namespace ronde
