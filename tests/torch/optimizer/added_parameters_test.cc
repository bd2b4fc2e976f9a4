// SPDX-License-Identifier: Apache-2.0
// Parameters that the inner optimizer gains after it was wrapped.
#include "tests/torch/optimizer/failing.h"

namespace ronde_test::added_parameters_test {

using ronde::DistributedOptimizer;
using ronde::ReduceOp;

TEST_CASE("parameters added later are reduced from then on, as in one process") {
  for (const int groups : {0, 2}) {
    CAPTURE(groups);
    Toy toy;
    DistributedOptimizer optimizer(toy.sgd, toy.names, {.groups = groups});
    check_refused([&] { optimizer.add_parameters(toy.names); }, {"new"});
    check_next_steps(toy, optimizer);
    const at::Tensor before = toy.p.detach().clone();
    const at::Tensor q = toy.add("q");
    optimizer.zero_grad();
    (toy.p * 5.0).sum().backward();
    // Not before it is told; a reduction of the old ones alone is nothing to step with.
    check_refused([&] { optimizer.step(); }, {"add_parameters()"});
    check_refused([&] { optimizer.step(); }, {"zero_grad()"});
    CHECK(torch::equal(toy.p, before));
    check_refused([&] { optimizer.add_parameters(Names()); }, {"named_parameters"});
    optimizer.add_parameters(toy.names);
    check_next_steps(toy, optimizer);
    const double changed = (3.0 + 5.0) * (mean_rank() + 1);
    CHECK(near(toy.p, before - changed, 1e-14));
    CHECK(near(q, full({4}, 1.0 - changed), 1e-14));
  }
}

TEST_CASE("parameters are added on no rank that has gradients to step with", "[n2][n3]") {
  for (const bool deltas : {false, true}) {
    CAPTURE(deltas);
    Toy toy;
    DistributedOptimizer optimizer(toy.sgd, toy.names,
                                   {.op = deltas ? ReduceOp::Adasum : ReduceOp::Average});
    toy.backward(1.0);
    optimizer.synchronize();
    const at::Tensor q = toy.add("q");
    // Its gradient is this rank's own.
    (q * static_cast<double>(ronde::rank())).sum().backward();
    check_refused([&] { optimizer.add_parameters(toy.names); },
                  {"between synchronize() and step()"});
    check_refused([&] { optimizer.step(); }, {"add_parameters()"});
    toy.check_values(1.0);
    optimizer.zero_grad();
    optimizer.add_parameters(toy.names);
    toy.backward(1.0);
    optimizer.step();
    toy.check_values(0.0);
  }
  Toy toy;
  DistributedOptimizer optimizer(toy.sgd, toy.names);
  if (ronde::rank() == 1) toy.backward(1.0);  // in flight
  toy.add("q");
  check_refused([&] { optimizer.add_parameters(toy.names); },
                {"add_parameters() was called while its gradient is being reduced"});
  check_refused([&] { optimizer.step(); }, {"add_parameters()"});
  optimizer.add_parameters(toy.names);
  check_next_steps(toy, optimizer);
}

TEST_CASE("a compression that one rank cannot make is made on none, and may be later", "[n2][n3]") {
  using Fails = Fragile::Fails;
  const auto fragile = std::make_shared<Fragile>();
  Toy toy(1.0, {"a", "b", "c"});
  for (const std::string name : {"a", "c"}) {
    fragile->fail(Fails::Making, name);
    check_told(thrown_text([&] {
                 DistributedOptimizer optimizer(toy.sgd, toy.names, {.compression = fragile});
               }),
               "no room for a mask");
  }
  for (const int groups : {0, 1}) {
    CAPTURE(groups);
    Toy growing(1.0, {"a", "b", "c"});
    fragile->fail(Fails::Making, "e");
    DistributedOptimizer optimizer(growing.sgd, growing.names,
                                   {.groups = groups, .compression = fragile});
    check_next_steps(growing, optimizer);
    growing.add("d");
    growing.add("e");
    check_told(thrown_text([&] { optimizer.add_parameters(growing.names); }), "no room for a mask");
    optimizer.zero_grad();
    growing.backward(1.0);
    check_refused([&] { optimizer.step(); }, {"add_parameters()"});
    fragile->fail(Fails::Never, "");
    optimizer.add_parameters(growing.names);
    check_next_steps(growing, optimizer);
  }
}

}  // namespace ronde_test::added_parameters_test
