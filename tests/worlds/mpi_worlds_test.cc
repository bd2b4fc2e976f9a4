// SPDX-License-Identifier: Apache-2.0
// Worlds from communicators of a program that owns MPI, whatever its thread level. MPI starts once
// a process: each case has its own.
#include <mpi.h>

#include <algorithm>
#include <cstdlib>

#include "ronde/ronde.h"
#include "tests/support/harness/case_table.h"
#include "tests/support/processes/own_mpi.h"
#include "tests/support/ranks/ranks.h"
#include "tests/worlds/world_sums.h"

namespace ronde::test {
namespace {

/// A communicator of the program's, with the world that is made from it.
class Model {
 public:
  Model(const std::string& name, int color, int key) {
    REQUIRE(MPI_Comm_split(MPI_COMM_WORLD, color, key, &communicator_) == MPI_SUCCESS);
    if (communicator_ == MPI_COMM_NULL) return;
    world_.emplace(name, InitOptions{.mpi_communicator = MPI_Comm_c2f(communicator_)});
  }
  ~Model() {
    if (communicator_ != MPI_COMM_NULL) MPI_Comm_free(&communicator_);
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  std::optional<World>& world() { return world_; }
  /// A sum by Ronde that is under way while MPI sums, over the same ranks.
  void check_sum(double own) const {
    if (!world_) return;
    const SumIn by_ronde(world_->set(), std::vector<double>(300, own));
    double by_mpi = own;
    CHECK(MPI_Allreduce(MPI_IN_PLACE, &by_mpi, 1, MPI_DOUBLE, MPI_SUM, communicator_) ==
          MPI_SUCCESS);
    CHECK(by_ronde.wait() == std::vector<double>(300, by_mpi));
  }
  void shutdown() {
    if (world_) world_->shutdown();
  }

 private:
  MPI_Comm communicator_ = MPI_COMM_NULL;
  std::optional<World> world_;
};

/// Models on half of the ranks, on all, on all reversed, and on one.
void check_models(int level, bool beside_init) {
  setenv("RONDE_LOG_LEVEL", "error", 1);
  init_mpi(level);
  const int rank = rank_by_mpi();
  const int size = size_by_mpi();
  if (beside_init) ronde::init();
  {
    Model half("half", rank < size / 2 ? 0 : 1, rank), all("all", 0, rank);
    Model reversed("reversed", 0, -rank), alone("alone", rank == size - 1 ? 0 : MPI_UNDEFINED, 0);
    CHECK(reversed.world()->rank() == size - 1 - rank);
    CHECK(alone.world().has_value() == (rank == size - 1));
    for (int step = 0; step < 50; ++step) {
      const double own = step + rank;
      for (const Model* model : {&half, &all, &reversed, &alone}) model->check_sum(own);
      if (beside_init) CHECK(sum_in(kGlobalSet, 1) == size);
    }
    std::vector<int> others(static_cast<std::size_t>(size));
    std::generate(others.begin(), others.end(), [next = size]() mutable { return --next; });
    World of_world("of_another", all.world()->set(), others);
    CHECK(sum_in(of_world.set(), rank) == size * (size - 1) / 2.0);
    of_world.shutdown();
    for (Model* model : {&reversed, &half, &alone}) model->shutdown();
    all.check_sum(rank);
    all.shutdown();
  }
  if (beside_init) {
    CHECK(sum_in(kGlobalSet, 1) == size);
    ronde::shutdown();
  }
  CHECK(MPI_Finalize() == MPI_SUCCESS);
}

[[maybe_unused]] const bool kRegistered = [] {
  const std::vector<std::pair<int, std::string>> levels = {
      {MPI_THREAD_SINGLE, "MPI_THREAD_SINGLE"},
      {MPI_THREAD_FUNNELED, "MPI_THREAD_FUNNELED"},
      {MPI_THREAD_SERIALIZED, "MPI_THREAD_SERIALIZED"},
      {MPI_THREAD_MULTIPLE, "MPI_THREAD_MULTIPLE"}};
  for (const auto& [level, name] : levels) {
    add_case("four models on communicators of their own with " + name, "[own]",
             [level = level] { check_models(level, false); });
    add_case("the same beside ronde::init() with " + name, "[own]",
             [level = level] { check_models(level, true); });
  }
  return true;
}();

TEST_CASE("worlds of chosen ranks of MPI_COMM_WORLD outlive MPI_Finalize", "[own]") {
  init_mpi(MPI_THREAD_FUNNELED);
  const int size = size_by_mpi();
  std::vector<int> ranks = {size - 1, 0};
  std::optional<World> ends;
  if (rank_by_mpi() == 0 || rank_by_mpi() == size - 1) {
    ends.emplace("ends", InitOptions{.mpi_ranks = ranks});
  }
  CHECK(MPI_Finalize() == MPI_SUCCESS);
  if (!ends) return;
  CHECK(sum_in(ends->set(), 3) == 6);
  ends->shutdown();
}

TEST_CASE("settings of data over MPI are those of init() alone", "[own]") {
  init_mpi(MPI_THREAD_MULTIPLE);
  setenv("RONDE_LOG_LEVEL", "off", 1);
  setenv("RONDE_CPU_BACKEND", "mpi", 1);
  setenv("RONDE_FABRIC", "mpi", 1);
  ronde::init();
  World world("w", {.mpi_communicator = MPI_Comm_c2f(MPI_COMM_WORLD)});
  CHECK(ronde::default_runtime().backend_name(DeviceKind::Cpu) == "mpi");
  CHECK(world.runtime().backend_name(DeviceKind::Cpu) == "shm");
  CHECK(sum_in(kGlobalSet, 1) == sum_in(world.set(), 1));
  world.shutdown();
  ronde::shutdown();
  CHECK(MPI_Finalize() == MPI_SUCCESS);
}

TEST_CASE("an MPI that Ronde has initialised makes no world, its ranks do", "[own]") {
  ronde::init();
  const std::string text =
      text_of<UsageError>([] { World("w", {.mpi_communicator = MPI_Comm_c2f(MPI_COMM_WORLD)}); });
  CAPTURE(text);
  CHECK(text.find("ronde::init() has initialised MPI in this process") != std::string::npos);
  std::vector<int> ranks(static_cast<std::size_t>(ronde::size()));
  std::generate(ranks.begin(), ranks.end(), [next = 0]() mutable { return next++; });
  World world("w", kGlobalSet, ranks);
  CHECK(sum_in(world.set(), 1) == ronde::size());
  world.shutdown();
  ronde::shutdown();
}

}  // namespace
}  // namespace ronde::test
