// SPDX-License-Identifier: Apache-2.0
// Groups whose tensors are the parts of a flat one.
#include "cases.h"

namespace ronde_test::gradients_test {
namespace {

/// The matrix, the scalar and the vector that are a group in one flat tensor.
Tensors parts_of(const at::Tensor& flat) {
  const std::int64_t rest = flat.numel() - 4;
  return {flat.narrow(0, 0, rest).view({-1, 2}), flat[rest], flat.narrow(0, rest + 1, 3)};
}

at::Tensor joined(const Tensors& parts) {
  Tensors flat;
  for (const at::Tensor& part : parts) flat.push_back(part.reshape({-1}));
  return at::cat(flat);
}

/// `whole`: what all ranks get of one part, from what all have.
Case group_case(const std::string& name, const std::function<Tensors(const Tensors& parts)>& group,
                const std::function<Tensors(const Tensors& tensors)>& whole) {
  return {name, same({10}),
          [group](const at::Tensor& flat) { return joined(group(parts_of(flat))); },
          [whole](const Tensors& tensors) {
            std::vector<Tensors> by_rank(index(ranks()));
            for (std::size_t part = 0; part < parts_of(tensors[0]).size(); ++part) {
              Tensors all;
              for (const at::Tensor& flat : tensors) all.push_back(parts_of(flat)[part]);
              const Tensors results = whole(all);
              for (int rank = 0; rank < ranks(); ++rank) {
                by_rank[index(rank)].push_back(results[index(rank)]);
              }
            }
            Tensors joined_by_rank;
            for (const Tensors& parts : by_rank) joined_by_rank.push_back(joined(parts));
            return joined_by_rank;
          }};
}

Case grouped_allreduce_case(const std::string& name, const ronde::AllreduceOptions& options,
                            const std::function<at::Tensor(const at::Tensor& stacked)>& reduce) {
  return group_case(
      name,
      [options](const Tensors& parts) { return ronde::grouped_allreduce(parts, in_set(options)); },
      [reduce](const Tensors& tensors) { return for_all(reduce(at::stack(tensors))); });
}

std::vector<Case> group_allreduce_cases() {
  return {
      grouped_allreduce_case("sum of a group", {.name = "gs", .op = ReduceOp::Sum},
                             [](const at::Tensor& all) { return all.sum(0); }),
      grouped_allreduce_case("scaled average of a group", {.prescale = 0.3, .postscale = 1.7},
                             [](const at::Tensor& all) { return 0.51 * all.mean(0); }),
      grouped_allreduce_case("max of a group", {.op = ReduceOp::Max},
                             [](const at::Tensor& all) { return all.amax(0); }),
      grouped_allreduce_case("product of a group", {.name = "gp", .op = ReduceOp::Product},
                             [](const at::Tensor& all) { return all.prod(0); }),
  };
}

/// Views of one tensor, changed in place.
Case group_in_place() {
  return {"group in place on views of what autograd computed", same({10}),
          [](const at::Tensor& flat) {
            const at::Tensor twice = 2 * flat;
            ronde::grouped_allreduce_(parts_of(twice), {.postscale = 3, .process_set = here});
            return twice * flat;
          },
          [](const Tensors& tensors) {
            Tensors results;
            for (const at::Tensor& flat : tensors) {
              results.push_back(6 * total(tensors) / ranks() * flat);
            }
            return results;
          }};
}

/// Each rank's loss has another part of the group.
Case group_in_part() {
  const auto of_rank = [](int rank, Tensors parts) {
    parts.erase(parts.begin() + rank % 3);
    return joined(parts);
  };
  return {"group of which each rank leaves out another result", same({10}),
          [of_rank](const at::Tensor& flat) {
            return of_rank(own_rank(),
                           ronde::grouped_allreduce(parts_of(flat), {.process_set = here}));
          },
          [of_rank](const Tensors& tensors) {
            Tensors results;
            for (int rank = 0; rank < ranks(); ++rank) {
              results.push_back(of_rank(rank, parts_of(total(tensors) / ranks())));
            }
            return results;
          }};
}

std::vector<Case> group_row_cases() {
  const auto rows = [](const at::Tensor& part) {
    return part.dim() == 0 ? part.reshape({1}) : part;
  };
  const auto scatter = [rows](const Tensors& parts) {
    Tensors with_rows;
    for (const at::Tensor& part : parts) with_rows.push_back(rows(part));
    return ronde::grouped_reducescatter(
        with_rows, {.name = "gr", .prescale = 4, .postscale = 0.2, .process_set = here});
  };
  Case gathered = group_case(
      "allgather of a group, uneven rows",
      [](const Tensors& parts) { return ronde::grouped_allgather(parts, {.process_set = here}); },
      [rows](const Tensors& tensors) {
        Tensors all;
        for (const at::Tensor& tensor : tensors) all.push_back(rows(tensor));
        return for_all(at::cat(all));
      });
  gathered.shape = [](int rank) { return std::vector<std::int64_t>{4 + 4 * rank}; };
  return {gathered, group_case("reducescatter of a group, scaled average", scatter,
                               [rows](const Tensors& tensors) {
                                 const at::Tensor sum = rows(0.8 / ranks() * total(tensors));
                                 return Tensors(sum.split_with_sizes(divided(sum.size(0))));
                               })};
}

}  // namespace

std::vector<Case> group_cases() {
  std::vector<Case> cases = group_allreduce_cases();
  cases.push_back(group_in_place());
  cases.push_back(group_in_part());
  for (const Case& one : group_row_cases()) cases.push_back(one);
  return cases;
}

}  // namespace ronde_test::gradients_test
