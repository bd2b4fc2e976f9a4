// SPDX-License-Identifier: Apache-2.0
// RONDE_EXACT=1: whatever a tensor shares its bucket with, and whoever is late, its result has the
// same bits, on every backend.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ronde/ronde.h"
#include "tests/support/oracle/forms.h"
#include "tests/support/oracle/oracle.h"
#include "tests/support/oracle/plain_mpi.h"
#include "tests/support/ranks/ranks.h"

namespace ronde::test {
namespace {

constexpr int kSteps = 3;

struct Tensor {
  Collective kind = Collective::Allreduce;
  DataType dtype = DataType::F32;
  ReduceOp op = ReduceOp::Sum;
  std::size_t count = 0;
};

/// In an order in which tensors that can be fused are neighbours. The largest are those whose sums
/// depend on the size of MPI's buffer: Open MPI 4.1 sends an allreduce of 64 KiB and more around a
/// ring of 3 ranks, and MPICH 4.0 adds another order in a reducescatter from 512 KiB on.
std::vector<Tensor> tensors() {
  std::vector<Tensor> all;
  for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Product, ReduceOp::Adasum}) {
    for (const std::size_t count : {1, 7, 300, 6001}) all.push_back({.op = op, .count = count});
    all.push_back({.dtype = DataType::F64, .op = op, .count = 300});
    all.push_back({.dtype = DataType::F64, .op = op, .count = 2001});
  }
  for (const std::size_t count : {20'000, 50'000}) all.push_back({.count = count});
  for (const std::size_t count : {3, 150'000}) {
    all.push_back({.kind = Collective::Reducescatter, .count = count});
  }
  all.push_back({.dtype = DataType::BF16, .op = ReduceOp::Product, .count = 300});
  all.push_back({.dtype = DataType::BF16, .op = ReduceOp::Product, .count = 6001});
  return all;
}

/// A tensor on its way: of each rank of the set what it puts in, and here what comes out.
struct Reduced {
  Reduced(const Tensor& of, const Place& place, std::uint64_t seed)
      : tensor(of), output(of.dtype, of.count) {
    for (const int rank : place.ranks) {
      inputs.push_back(make_input(of.dtype, of.op, of.count, rank, seed));
    }
    if (of.kind == Collective::Allreduce) return;
    const auto ranks = place.ranks.size();
    const auto own = static_cast<std::size_t>(place.rank);
    begin = own * (of.count / ranks) + std::min(own, of.count % ranks);
    output = Elements(of.dtype, of.count / ranks + (own < of.count % ranks ? 1 : 0));
  }

  Work start(const Place& place, const std::string& name) {
    Request request;
    request.kind = tensor.kind;
    request.name = name;
    request.dtype = tensor.dtype;
    request.op = tensor.op;
    request.shape = {static_cast<std::int64_t>(tensor.count)};
    request.input = inputs[static_cast<std::size_t>(place.rank)].data();
    request.output = output.data();
    request.set = place.set;
    return ronde::submit(std::move(request));
  }

  Tensor tensor;
  std::vector<Elements> inputs;
  Elements output;
  std::size_t begin = 0;
};

/// The results of a step, which are right. `late`: this rank's part comes later than the others'.
std::vector<Elements> results_of_step(const Place& place, bool backward, bool late) {
  std::vector<Reduced> all;
  for (const Tensor& tensor : tensors()) all.emplace_back(tensor, place, all.size());
  if (late) std::this_thread::sleep_for(std::chrono::milliseconds(3));
  std::vector<Work> works;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t at = backward ? all.size() - 1 - i : i;
    works.push_back(all[at].start(place, std::to_string(at)));
  }
  for (Work& work : works) work.wait();
  std::vector<Elements> results;
  for (const Reduced& reduced : all) {
    const auto ranks = static_cast<int>(place.ranks.size());
    CHECK(first_difference({.dtype = reduced.tensor.dtype, .op = reduced.tensor.op, .ranks = ranks},
                           reduced.inputs, reduced.output, reduced.begin) == "");
    results.push_back(reduced.output);
  }
  return results;
}

/// The first step's results, by set, for those of all later ones.
using Expected = std::vector<std::optional<std::vector<Elements>>>;

void check_steps(const Place& place, bool backward,
                 std::optional<std::vector<Elements>>& expected) {
  for (int step = 0; step < kSteps; ++step) {
    const bool late = step % static_cast<int>(place.ranks.size()) == place.rank;
    const std::vector<Elements> results = results_of_step(place, backward, late);
    if (!expected) expected = results;
    for (std::size_t i = 0; i < results.size(); ++i) {
      CAPTURE(backward, step, i, results[i].count(), to_string(results[i].dtype()));
      CHECK(results[i] == (*expected)[i]);
    }
  }
}

/// All ranks, and a set whose order is another.
void check_sets(PlainMpi& mpi, bool backward, bool may_fuse, Expected& expected) {
  std::vector<int> ranks(static_cast<std::size_t>(mpi.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  check_steps({kGlobalSet, ranks, mpi.rank()}, backward, expected[0]);
  std::ranges::reverse(ranks);
  if (ranks.size() > 3) ranks.pop_back();
  const ProcessSet set = ronde::add_process_set(ranks);
  if (const auto rank = ronde::rank_in(set))
    check_steps({set, ranks, *rank}, backward, expected[1]);
  ronde::remove_process_set(set);
  const bool fuses = counter_of(default_runtime(), "execution", "fused_tensors") > 0;
  CHECK(fuses == may_fuse);
}

/// `hosts` has a letter for each rank.
void check_exact(const std::string& backend, const std::string& hosts) {
  Expected expected(2);
  for (const auto& [fusion, backward] :
       {std::pair(std::string("0"), false), {"4MiB", false}, {"4MiB", true}, {"20KiB", true}}) {
    CAPTURE(backend, hosts, fusion);
    const auto rank = static_cast<std::size_t>(PlainMpi::instance().rank());
    with_group([&](PlainMpi& mpi) { check_sets(mpi, backward, fusion != "0", expected); },
               {{"RONDE_EXACT", "1"},
                {"RONDE_CPU_BACKEND", backend},
                {"RONDE_HOST_ID", std::string(1, hosts.at(rank))},
                {"RONDE_FUSION_BYTES", fusion},
                {"RONDE_FREEZE_AFTER_STEPS", "1"},
                {"RONDE_CYCLE_TIME_MS", "2"}});
  }
}

}  // namespace

TEST_CASE("exact results do not depend on the bucket or on time, on one host", "[n2][n3][n4]") {
  check_exact("shm", "aaaa");
  check_exact("mpi", "aaaa");
}

TEST_CASE("exact results do not depend on the bucket or on time, on several hosts", "[n3][n4]") {
  check_exact("hierarchical", "abab");
  check_exact("hierarchical", "abbb");
  check_exact("auto", "abcd");
  check_exact("mpi", "aabb");
}

}  // namespace ronde::test
