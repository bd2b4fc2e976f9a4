// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "cases.h"

namespace ronde_test::gradients_test {
namespace {

/// Rows from rank `from` to rank `to`: uneven, and none from the last rank to itself.
std::int64_t routed(int from, int to) {
  return from == to && from == ranks() - 1 ? 0 : 1 + (2 * from + to) % 3;
}

std::vector<std::int64_t> routes(int from) {
  std::vector<std::int64_t> splits;
  for (int to = 0; to < ranks(); ++to) splits.push_back(routed(from, to));
  return splits;
}

std::int64_t sum_of(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

/// Alltoall of everybody's tensors by the splits of each rank.
Tensors exchanged(const Tensors& tensors,
                  const std::function<std::vector<std::int64_t>(int)>& splits) {
  std::vector<Tensors> parts(index(ranks()));
  for (int from = 0; from < ranks(); ++from) {
    const Tensors pieces = tensors[index(from)].split_with_sizes(splits(from));
    for (int to = 0; to < ranks(); ++to) parts[index(to)].push_back(pieces[index(to)]);
  }
  Tensors results;
  for (const Tensors& received : parts) results.push_back(at::cat(received));
  return results;
}

Case allreduce_case(const std::string& name, const ronde::AllreduceOptions& options,
                    const std::function<at::Tensor(const at::Tensor& stacked)>& reduce) {
  return {name, same({2, 3}),
          [options](const at::Tensor& tensor) { return ronde::allreduce(tensor, in_set(options)); },
          [reduce](const Tensors& tensors) { return for_all(reduce(at::stack(tensors))); }};
}

std::vector<Case> allreduce_cases() {
  return {
      allreduce_case("sum", {.name = "s", .op = ReduceOp::Sum},
                     [](const at::Tensor& all) { return all.sum(0); }),
      allreduce_case("average", {}, [](const at::Tensor& all) { return all.mean(0); }),
      allreduce_case("scaled sum", {.op = ReduceOp::Sum, .prescale = 0.5, .postscale = -3},
                     [](const at::Tensor& all) { return -1.5 * all.sum(0); }),
      allreduce_case("scaled average", {.name = "a", .prescale = 0.3, .postscale = 1.7},
                     [](const at::Tensor& all) { return 0.51 * all.mean(0); }),
      allreduce_case("min", {.name = "m", .op = ReduceOp::Min},
                     [](const at::Tensor& all) { return all.amin(0); }),
      allreduce_case("max", {.op = ReduceOp::Max},
                     [](const at::Tensor& all) { return all.amax(0); }),
      allreduce_case("product", {.op = ReduceOp::Product},
                     [](const at::Tensor& all) { return all.prod(0); }),
      {"in place on what autograd computed", same({4}),
       [](const at::Tensor& tensor) {
         at::Tensor twice = 2 * tensor;
         return ronde::allreduce_(twice, {.name = "in place", .process_set = here}) * tensor;
       },
       [](const Tensors& tensors) {
         Tensors results;
         for (const at::Tensor& tensor : tensors)
           results.push_back(2 * total(tensors) / ranks() * tensor);
         return results;
       }},
      {"in place on a view of it", same({3, 2}),
       [](const at::Tensor& tensor) {
         at::Tensor twice = 2 * tensor;
         ronde::allreduce_(twice.narrow(0, 1, 2).t(), {.op = ReduceOp::Sum, .process_set = here});
         return twice;
       },
       [](const Tensors& tensors) {
         Tensors results;
         for (const at::Tensor& tensor : tensors) {
           results.push_back(2 * at::cat({tensor.narrow(0, 0, 1), total(tensors).narrow(0, 1, 2)}));
         }
         return results;
       }},
  };
}

std::vector<Case> broadcast_cases() {
  const int last = ranks() - 1;
  return {
      {"broadcast", same({5}),
       [](const at::Tensor& tensor) {
         return ronde::broadcast(tensor, {.name = "b", .process_set = here});
       },
       [](const Tensors& tensors) { return for_all(tensors[0]); }},
      {"broadcast of a scalar from the last rank", same({}),
       [last](const at::Tensor& tensor) {
         return ronde::broadcast(tensor, {.root = last, .process_set = here});
       },
       [last](const Tensors& tensors) { return for_all(tensors[index(last)]); }},
      {"broadcast in place", same({2, 2}),
       [last](const at::Tensor& tensor) {
         at::Tensor copy = tensor.sin();
         return ronde::broadcast_(copy, {.root = last, .process_set = here}) + tensor;
       },
       [last](const Tensors& tensors) {
         Tensors results;
         for (const at::Tensor& tensor : tensors) {
           results.push_back(tensors[index(last)].sin() + tensor);
         }
         return results;
       }},
  };
}

std::vector<Case> row_cases() {
  const auto gathered = [](const Tensors& tensors) { return for_all(at::cat(tensors)); };
  const auto allgather = [](const at::Tensor& tensor) {
    return ronde::allgather(tensor, {.process_set = here});
  };
  const auto scattered = [](double factor) {
    return [factor](const Tensors& tensors) {
      return Tensors((factor * total(tensors)).split_with_sizes(divided(tensors[0].size(0))));
    };
  };
  return {
      {"allgather", same({2, 3}), allgather, gathered},
      {"allgather of uneven rows, none on rank 0",
       [](int rank) {
         return std::vector<std::int64_t>{2 * rank, 2};
       },
       allgather, gathered},
      {"allgather of scalars", same({}), allgather,
       [](const Tensors& tensors) { return for_all(at::stack(tensors)); }},
      {"alltoall", same({2 * ranks(), 2}),
       [](const at::Tensor& tensor) { return ronde::alltoall(tensor, {}, {.process_set = here}); },
       [](const Tensors& tensors) {
         return exchanged(tensors,
                          [](int) { return std::vector<std::int64_t>(index(ranks()), 2); });
       }},
      {"alltoall with splits",
       [](int rank) {
         return std::vector<std::int64_t>{sum_of(routes(rank)), 1};
       },
       [](const at::Tensor& tensor) {
         return ronde::alltoall(tensor, routes(own_rank()),
                                {.name = "routed", .process_set = here});
       },
       [](const Tensors& tensors) { return exchanged(tensors, routes); }},
      {"reducescatter sum", same({2 * ranks() + 1, 2}),
       [](const at::Tensor& tensor) {
         return ronde::reducescatter(tensor,
                                     {.name = "rs", .op = ReduceOp::Sum, .process_set = here});
       },
       scattered(1)},
      {"reducescatter average, scaled", same({ranks() + 1}),
       [](const at::Tensor& tensor) {
         return ronde::reducescatter(tensor,
                                     {.prescale = 4, .postscale = 0.2, .process_set = here});
       },
       scattered(0.8 / ranks())},
      {"reducescatter of fewer rows than ranks", same({1, 3}),
       [](const at::Tensor& tensor) { return ronde::reducescatter(tensor, {.process_set = here}); },
       scattered(1.0 / ranks())},
  };
}

}  // namespace

std::vector<Case> single_cases() {
  std::vector<Case> cases = allreduce_cases();
  for (const auto& more : {broadcast_cases(), row_cases()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  return cases;
}

}  // namespace ronde_test::gradients_test
