// SPDX-License-Identifier: Apache-2.0
#include "tests/torch/layouts.h"

namespace ronde_test::process_sets_test {
namespace {

const std::vector<std::int64_t> kSizes = {5, 3, 2, 2};

at::Tensor input_of(int rank, std::int64_t seed) {
  return laid_out(whole_numbers(kSizes, rank, seed), rank, seed);
}

Tensors inputs_of(const std::vector<int>& ranks, std::int64_t seed) {
  Tensors inputs;
  for (const int rank : ranks) inputs.push_back(input_of(rank, seed));
  return inputs;
}

void check_reductions(ProcessSet set, const std::vector<int>& ranks, int within) {
  const int size = static_cast<int>(ranks.size());
  const auto make = [] { return input_of(ronde::rank(), 1); };
  const at::Tensor sum = sum_of(inputs_of(ranks, 1));
  check_allreduce(make, sum, {.name = "a", .op = ReduceOp::Sum, .process_set = set});
  CHECK(near(ronde::allreduce(make(), {.process_set = set}), sum / size, 1e-6));
  const at::Tensor part = sum.tensor_split(size)[index(within)];
  const ronde::ReducescatterOptions options = {.op = ReduceOp::Sum, .process_set = set};
  CHECK(torch::equal(ronde::reducescatter(make(), options), part));
  CHECK(torch::equal(ronde::grouped_reducescatter({make()}, options)[0], part));
}

void check_moves(ProcessSet set, const std::vector<int>& ranks, int within) {
  const int size = static_cast<int>(ranks.size());
  const at::Tensor mine = input_of(ronde::rank(), 2);
  const Tensors all = inputs_of(ranks, 2);
  CHECK(torch::equal(ronde::allgather(mine, {.process_set = set}), at::cat(all)));
  CHECK(torch::equal(ronde::grouped_allgather({mine}, {.process_set = set})[0], at::cat(all)));
  for (int root = 0; root < size; ++root) {
    const at::Tensor& expected = all[index(root)];
    CHECK(torch::equal(ronde::broadcast(mine, {.root = root, .process_set = set}), expected));
    const at::Tensor copy = mine.clone();
    ronde::broadcast_(copy, {.root = root, .process_set = set});
    CHECK(torch::equal(copy, expected));
  }
  // All rows go to the last rank of the set.
  std::vector<std::int64_t> splits(ranks.size());
  splits.back() = kSizes[0];
  const TensorWork work = ronde::alltoall_async(mine, splits, {.process_set = set});
  const bool is_last = within == size - 1;
  CHECK(torch::equal(work.wait(), is_last ? at::cat(all) : mine.slice(0, 0, 0)));
  CHECK(work.received_splits() == std::vector<std::int64_t>(ranks.size(), is_last ? kSizes[0] : 0));
  if (size > 1) {
    const at::Tensor in = at::zeros(kSizes);
    const int before = (within + size - 1) % size;
    const TensorWork sent =
        ronde::send_async(mine, {.peer = (within + 1) % size, .process_set = set});
    CHECK(ronde::recv_(in, {.process_set = set}) == before);
    sent.wait();
    CHECK(torch::equal(in, all[index(before)]));
  }
  ronde::barrier({.process_set = set});
}

TEST_CASE("every tensor operation in every process set, in its order") {
  std::vector<std::vector<int>> sets;
  for (unsigned subset = 1; subset < 1U << ronde::size(); ++subset) {
    std::vector<int>& ranks = sets.emplace_back();
    for (int rank = ronde::size() - 1; rank >= 0; --rank) {
      if ((subset >> rank & 1U) != 0) ranks.push_back(rank);
    }
  }
  for (const std::vector<int>& ranks : sets) {
    const ProcessSet set = ronde::add_process_set(ranks);
    CAPTURE(ranks);
    if (const auto within = ronde::rank_in(set)) {
      check_reductions(set, ranks, *within);
      check_moves(set, ranks, *within);
    } else {
      const at::Tensor tensor = at::ones({4});
      const std::string outside =
          "rank " + std::to_string(ronde::rank()) + " is not in process set ";
      const std::vector<std::function<void()>> calls = {
          [&] { ronde::allreduce(tensor, {.process_set = set}); },
          [&] { ronde::allreduce_(tensor, {.process_set = set}); },
          [&] { ronde::broadcast(tensor, {.process_set = set}); },
          [&] { ronde::allgather(tensor, {.process_set = set}); },
          [&] { ronde::reducescatter(tensor, {.process_set = set}); },
          [&] { ronde::alltoall(tensor, {}, {.process_set = set}); },
          [&] { ronde::grouped_allreduce({tensor}, {.process_set = set}); },
          [&] { ronde::grouped_allreduce_({tensor}, {.process_set = set}); },
          [&] { ronde::grouped_allgather({tensor}, {.process_set = set}); },
          [&] { ronde::grouped_reducescatter({tensor}, {.process_set = set}); },
          [&] { ronde::send(tensor, {.peer = 0, .process_set = set}); },
          [&] { ronde::recv_(tensor, {.process_set = set}); },
          [&] { ronde::barrier({.process_set = set}); },
      };
      for (const auto& call : calls) check_refused(call, {outside});
      CHECK(torch::equal(tensor, at::ones({4})));
    }
    ronde::remove_process_set(set);
  }
}

TEST_CASE("an optimizer of a set is refused outside it, and leaves the others' names alone",
          "[n3]") {
  const ProcessSet set = ronde::add_process_set({2, 0});
  const at::Tensor mine = full({2}, 1.0).requires_grad_();
  torch::optim::SGD inner({mine}, 1.0);
  const Names names = {{"w", mine}};
  const auto wrap = [&](const Names& named) {
    return DistributedOptimizer(inner, named, {.process_set = set});
  };
  const auto backward = [&] { (mine * (ronde::rank() + 1.0)).sum().backward(); };
  if (ronde::rank_in(set)) {
    // Ranks that differ are named by their numbers in the group.
    const Names own = {{"w" + std::to_string(ronde::rank()), mine}};
    check_refused([&] { wrap(own); }, {"\n  rank 0 has ", " where rank 2 has "});
    // Two of the set, of which rank 1 has none: the one of all ranks below has one name on all.
    wrap(names);
    DistributedOptimizer optimizer = wrap(names);
    backward();
    optimizer.step();
  } else {
    check_refused([&] { wrap(names); }, {"rank 1 is not in process set " + std::to_string(set.id) +
                                             ", which has the ranks 2,0",
                                         "step the inner optimizer"});
    // Nothing was hooked: the rank trains alone.
    backward();
    inner.step();
  }
  // The set subtracts the average of 1 and 3, rank 1 its own 2.
  CHECK(near(mine, full({2}, 1.0 - 2.0), 1e-12));
  inner.zero_grad();
  DistributedOptimizer of_all(inner, names);
  backward();
  of_all.step();
  CHECK(near(mine, full({2}, -1.0 - 2.0), 1e-12));
  ronde::remove_process_set(set);
}

TEST_CASE("parameters and optimizers start equal in a set, from its root", "[n3]") {
  const ProcessSet set = ronde::add_process_set({2, 0});
  struct Model {
    explicit Model(int rank) : net(3), adam(net->parameters(), 0.1 * (rank + 1)) {
      fill_normal({net->weight}, 5 + rank);
      net->running_mean.fill_(rank);
      steps(rank + 1);
    }
    void steps(int count) {
      for (int step = 0; step < count; ++step) {
        adam.zero_grad();
        net->weight.square().sum().backward();
        adam.step();
      }
    }
    torch::nn::BatchNorm1d net;
    torch::optim::Adam adam;
  };
  // Number 1 of the set is rank 0 of all; rank 1 is outside and keeps what it has.
  Model expected(ronde::rank_in(set) ? 0 : 1), mine(ronde::rank());
  const std::vector<std::function<void(int root)>> calls = {
      [&](int root) { ronde::broadcast_parameters(*mine.net, root, set); },
      [&](int root) { ronde::broadcast_parameters(mine.net->named_parameters(), root, set); },
      [&](int root) { ronde::broadcast_optimizer_state(mine.adam, root, set); },
  };
  for (const auto& call : calls) {
    if (ronde::rank_in(set)) {
      check_refused([&] { call(2); },
                    {"\n  rank 2: root_rank is 2, but there are only the ranks 0 to 1"});
      call(1);
    } else {
      check_refused([&] { call(1); }, {"rank 1 is not in process set "});
    }
  }
  expected.steps(1);
  mine.steps(1);
  CHECK(equal({mine.net->weight, mine.net->running_mean},
              {expected.net->weight, expected.net->running_mean}));
  ronde::remove_process_set(set);
}

TEST_CASE("a sampler of a set is refused outside it, unless rank and size are given", "[n3]") {
  const ProcessSet set = ronde::add_process_set({2, 0});
  if (ronde::rank_in(set)) {
    CHECK(ronde::DistributedSampler(5, {.process_set = set}).samples_per_rank() == 3);
  } else {
    check_refused([&] { ronde::DistributedSampler(5, {.process_set = set}); },
                  {"rank 1 is not in process set "});
  }
  const ronde::DistributedSampler given(6, {.rank = 0, .size = 3, .process_set = set});
  CHECK(given.samples_per_rank() == 2);
  ronde::remove_process_set(set);
}

}  // namespace
}  // namespace ronde_test::process_sets_test
