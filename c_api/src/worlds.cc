// SPDX-License-Identifier: Apache-2.0
// Worlds beside that of ronde_init(), and the numbers of process sets.
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "c_api/src/arguments.h"
#include "c_api/src/groups.h"
#include "core/src/base/caller.h"
#include "ronde/ronde.h"

namespace ronde::c {
namespace {

constexpr std::uint32_t kFirstOfWorlds = std::uint32_t{1} << 31;

/// The worlds and sets that the program can name.
struct Known {
  std::mutex mutex;
  // Guarded by mutex.
  std::vector<ProcessSet> sets;                            ///< of worlds: number 2^31 first
  std::map<std::uint32_t, std::shared_ptr<World>> worlds;  ///< by number
  std::set<std::uint32_t> ending;  ///< worlds that a thread is shutting down
};

/// Throws UsageError in a child of fork(), where a thread of the parent may have held the mutex.
Known& known() {
  static auto* const all = new Known();  // the program may call while its statics are destroyed
  static const int depth = fork_depth();
  if (depth != fork_depth()) throw error_after_fork("a function for a world");
  return *all;
}

/// Called with the mutex held.
std::shared_ptr<World> find_locked(std::uint32_t number) {
  const auto found = known().worlds.find(number);
  if (found != known().worlds.end()) return found->second;
  throw Failure(RONDE_E_UNKNOWN_SET, "there is no world " + std::to_string(number) +
                                         ": it was never made, or was shut down");
}

std::shared_ptr<World> world_of(std::uint32_t number) {
  const std::lock_guard lock(known().mutex);
  return find_locked(number);
}

/// While it lives, a world is being shut down; afterwards the number names no world.
class Ending {
 public:
  explicit Ending(std::uint32_t number) : number_(number) {
    const std::lock_guard lock(known().mutex);
    world_ = find_locked(number);
    if (known().ending.insert(number).second) return;
    throw Failure(RONDE_E_USAGE,
                  "another thread is shutting world " + std::to_string(number) + " down");
  }
  ~Ending() {
    const std::lock_guard lock(known().mutex);
    known().ending.erase(number_);
    known().worlds.erase(number_);
  }
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;

  World& world() const noexcept { return *world_; }

 private:
  const std::uint32_t number_;
  std::shared_ptr<World> world_;
};

/// Keeps the world that `make` returns, and gives its number.
template <typename Make>
int give_world(const char* function, const char* name, std::uint32_t* world,
               const Make& make) noexcept {
  return guarded(function, [&] {
    expect(name != nullptr, "name is NULL");
    expect(world != nullptr, "world is NULL");
    expect_no_callback();
    const std::shared_ptr<World> made = make();
    const std::uint32_t number = number_of(made->set());
    const std::lock_guard lock(known().mutex);
    known().worlds.emplace(number, made);
    *world = number;
  });
}

int shut_down(const char* function, std::uint32_t world, std::optional<double> seconds) noexcept {
  return guarded(function, [&] {
    expect_no_callback();
    std::optional<std::chrono::nanoseconds> limit;
    if (seconds) limit = timeout_of(*seconds, "seconds");
    const Ending ending(world);
    end_of_world(function, ending.world().set(), [&] { ending.world().shutdown(limit); });
  });
}

}  // namespace

ProcessSet set_of(std::uint32_t number) {
  if (number < kFirstOfWorlds) return {number};
  const std::lock_guard lock(known().mutex);
  const std::size_t place = number - kFirstOfWorlds;
  if (place < known().sets.size()) return known().sets[place];
  throw Failure(RONDE_E_UNKNOWN_SET, "there is no process set " + std::to_string(number));
}

std::uint32_t number_of(ProcessSet set) {
  if (set.world == kGlobalSet.world) return set.id;
  const std::lock_guard lock(known().mutex);
  std::vector<ProcessSet>& sets = known().sets;
  auto place = std::ranges::find(sets, set);
  if (place == sets.end()) place = sets.insert(place, set);
  return kFirstOfWorlds + static_cast<std::uint32_t>(place - sets.begin());
}

}  // namespace ronde::c

using namespace ronde::c;

int ronde_world_make(const char* name, const ronde_init_options* options, uint32_t* world) {
  return give_world("ronde_world_make", name, world,
                    [&] { return std::make_shared<ronde::World>(name, options_of(options)); });
}

int ronde_world_make_within(const char* name, uint32_t set, const int* ranks, int count,
                            uint32_t* world) {
  return give_world("ronde_world_make_within", name, world, [&] {
    return std::make_shared<ronde::World>(name, set_of(set), list_of(ranks, count));
  });
}

int ronde_world_shutdown(uint32_t world) {
  return shut_down("ronde_world_shutdown", world, std::nullopt);
}

int ronde_world_shutdown_within(uint32_t world, double seconds) {
  return shut_down("ronde_world_shutdown_within", world, seconds);
}

int ronde_world_abort(uint32_t world, const char* text) {
  return guarded("ronde_world_abort", [&] {
    expect(text != nullptr, "text is NULL");
    ronde::abort(text, world_of(world)->set());
  });
}

int ronde_world_local(uint32_t world, int* rank, int* size) {
  return guarded("ronde_world_local", [&] {
    expect(rank != nullptr && size != nullptr, "rank or size is NULL");
    const ronde::Topology& topology = world_of(world)->topology();
    *rank = topology.local_rank;
    *size = topology.local_size;
  });
}

int ronde_world_process_set_add(uint32_t world, const int* ranks, int count, uint32_t* set) {
  return give_set("ronde_world_process_set_add", set,
                  [&] { return world_of(world)->add_process_set(list_of(ranks, count)); });
}

int ronde_world_process_set_create(uint32_t world, const int* ranks, int count, const char* tag,
                                   uint32_t* set) {
  return give_set("ronde_world_process_set_create", set, [&] {
    return world_of(world)->create_process_set(list_of(ranks, count), tag == nullptr ? "" : tag);
  });
}
