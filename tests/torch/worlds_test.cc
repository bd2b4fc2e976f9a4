// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tests/torch/checkpoint/training.h"

namespace ronde_test::worlds_test {
namespace {

constexpr int kSteps = 6;
constexpr std::int64_t kBatch = 5;

/// A layer, a batch norm over the ranks of a world, and another layer.
struct NetImpl : torch::nn::Module {
  NetImpl(ProcessSet set, bool is_whole) {
    first = register_module("first", torch::nn::Linear(4, 6));
    second = register_module("second", torch::nn::Linear(6, 2));
    if (is_whole) {
      norm = register_module("norm", torch::nn::BatchNorm1d(6));
    } else {
      synced = register_module(
          "norm", ronde::SyncBatchNorm1d(ronde::SyncBatchNormOptions(6).process_set(set)));
    }
    to(at::kDouble);
    fill_normal({first->weight, first->bias, second->weight, second->bias}, 3);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = first->forward(x);
    return second->forward(torch::tanh(norm ? norm->forward(y) : synced->forward(y)));
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  ronde::SyncBatchNorm1d synced{nullptr};
};
TORCH_MODULE(Net);

at::Tensor batch_of(int step, int member) {
  return normal({kBatch, 4}, 100 * step + member);
}

at::Tensor loss_of(Net& net, const at::Tensor& x) {
  return net->forward(x).square().mean();
}

/// A model in a world, beside the one process that has the batches of all its members. `members`
/// are numbers of the job, in the order of the world.
struct Model {
  Model(const std::string& name, std::vector<int> ranks)
      : members(std::move(ranks)),
        world(name, ronde::kGlobalSet, members),
        net(world.set(), false),
        whole(ronde::kGlobalSet, true),
        inner(net->parameters(), 0.1),
        reference(whole->parameters(), 0.1),
        optimizer(inner, net->named_parameters(), {.process_set = world.set()}) {
    ronde::broadcast_parameters(*net, 0, world.set());
  }

  void train(int step) {
    optimizer.zero_grad();
    loss_of(net, batch_of(step, ronde::rank())).backward();
    optimizer.step();
    reference.zero_grad();
    Tensors batches;
    for (const int member : members) batches.push_back(batch_of(step, member));
    loss_of(whole, at::cat(batches)).backward();
    reference.step();
  }
  bool is_like_one_process() const {
    return near(flatten(net->parameters()), flatten(whole->parameters()), 1e-10);
  }

  std::vector<int> members;
  ronde::World world;
  Net net, whole;
  // No Adam: the first bias has no gradient but noise, which that scales up.
  torch::optim::SGD inner, reference;
  DistributedOptimizer optimizer;
};

std::vector<int> reversed_ranks() {
  return by_rank([](int rank) { return ronde::size() - 1 - rank; });
}

TEST_CASE("two models in worlds of their own train in turns as in one process each") {
  const int parity = ronde::rank() % 2;
  std::vector<int> of_parity;
  for (int rank = parity; rank < ronde::size(); rank += 2) of_parity.push_back(rank);
  Model half(parity == 0 ? "even" : "odd", of_parity);
  Model all("all", reversed_ranks());
  CHECK(all.world.rank() == ronde::size() - 1 - ronde::rank());
  for (int step = 0; step < kSteps; ++step) {
    half.train(step);
    all.train(10 + step);
    if (step % 2 == 0) all.train(20 + step);
    CHECK(half.is_like_one_process());
    CHECK(all.is_like_one_process());
  }
  ronde::check_replicas(*half.net, half.world.set());
  CHECK(ronde::figures(all.world.set()).steps == kSteps + kSteps / 2);
  CHECK(ronde::figures(half.world.set()).steps == kSteps);
  if (ronde::size() > 1) {
    check_contains(ronde::stats(all.world.set()), {"gradients", "sync_batch_norm"});
  }
  all.world.shutdown();
  half.world.shutdown();
}

TEST_CASE("tensors, objects, samplers and checkpoints take a world") {
  const checkpoints::SharedFolder folder;
  ronde::World world("calls", ronde::kGlobalSet, reversed_ranks());
  const ProcessSet set = world.set();
  const at::Tensor sum = ronde::allreduce(full({3}, world.rank()),
                                          {.name = "x", .op = ReduceOp::Sum, .process_set = set});
  CHECK(near(sum, full({3}, world.size() * (world.size() - 1) / 2.0), 0));
  std::string text = "from " + std::to_string(ronde::rank());
  ronde::broadcast_object(text, {.process_set = set});
  CHECK(text == "from " + std::to_string(ronde::size() - 1));
  ronde::DistributedSampler sampler(12, {.shuffle = false, .process_set = set});
  sampler.reset();
  CHECK(sampler.next(1).value().front() == static_cast<std::size_t>(world.rank()));
  at::Tensor state = full({4}, world.rank() == 0 ? 7 : 0);
  {
    ronde::Checkpoint checkpoint(folder.path(), {.process_set = set});
    checkpoint.add("state", state).save(5);
    world.shutdown();  // waits for the save
  }
  ronde::World again("calls", ronde::kGlobalSet, reversed_ranks());
  state.zero_();
  ronde::Checkpoint checkpoint(folder.path(), {.process_set = again.set()});
  checkpoint.add("state", state);
  REQUIRE(checkpoint.resume() == 5);
  CHECK(near(state, full({4}, 7), 0));
  again.shutdown();
}

TEST_CASE("errors about tensors name the rank in its world", "[n2][n4]") {
  ronde::World world("critic", ronde::kGlobalSet, reversed_ranks());
  const at::Tensor tensor = full({world.rank() == 0 ? 2 : 3}, 1);
  const std::string own = "rank " + std::to_string(world.rank()) + " of world 'critic'";
  check_refused([&] { ronde::allreduce(at::ones({2}).to_sparse(), {.process_set = world.set()}); },
                {own});
  check_refused([&] { ronde::allreduce(tensor, {.name = "x", .process_set = world.set()}); },
                {"rank 0: allreduce f64 [2]", ": allreduce f64 [3]"});
  world.shutdown();
}

TEST_CASE("a world meets in a TCPStore of c10d") {
  const bool serves = ronde::rank() == 0;
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  c10::intrusive_ptr<c10d::Store> store;
  std::string port;
  if (serves) {
    const auto server = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    port = std::to_string(server->getPort());
    store = server;
  }
  ronde::broadcast_object(port);
  options.isServer = false;
  options.port = static_cast<std::uint16_t>(std::stoi(port));
  if (!serves) store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);

  ronde::KeyValueStart start;
  start.rank = ronde::rank();
  start.size = ronde::size();
  start.prefix = "actor of run 17";
  start.put = [store](const std::string& key, const std::string& value) { store->set(key, value); };
  start.get = [store](const std::string& key) -> std::optional<std::string> {
    if (!store->check({key})) return std::nullopt;
    return store->get_to_str(key);
  };
  ronde::World actor("actor", {.key_value = start});
  CHECK(near(ronde::allreduce(full({2}, 1),
                              {.name = "x", .op = ReduceOp::Sum, .process_set = actor.set()}),
             full({2}, ronde::size()), 0));
  actor.shutdown();
  ronde::barrier();  // the store stays until all have met
}

}  // namespace
}  // namespace ronde_test::worlds_test
