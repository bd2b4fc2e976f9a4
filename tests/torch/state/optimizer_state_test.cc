// SPDX-License-Identifier: Apache-2.0
// broadcast_optimizer_state of every optimizer of LibTorch, whatever state each rank's is in. The
// oracle is the root's optimizer built and stepped here, in one process.
#include "tests/torch/support.h"

namespace ronde_test::optimizer_state_test {
namespace {

using namespace torch::optim;

// Makes the optimizer of these groups, each with options of its own.
using Make = std::function<std::unique_ptr<Optimizer>(const std::vector<Tensors>& groups)>;

template <typename Kind, typename Options>
Make with(const Options& options) {
  return [options](const std::vector<Tensors>& groups) -> std::unique_ptr<Optimizer> {
    std::vector<OptimizerParamGroup> list;
    double factor = 1;
    for (const Tensors& group : groups) {
      auto own = std::make_unique<Options>(options);
      own->set_lr(options.lr() * factor);
      list.emplace_back(group, std::move(own));
      factor /= 2;
    }
    return std::make_unique<Kind>(list, options);
  };
}

struct Row {
  std::string name;
  // No option is the same in both.
  Make one;
  Make other;
  bool only_floats = false;
};

const std::vector<Row>& rows() {
  const auto sgd = SGDOptions(0.02).momentum(0.9).dampening(0.1).weight_decay(0.01);
  const auto nesterov = SGDOptions(0.05).momentum(0.5).dampening(0).weight_decay(0).nesterov(true);
  const auto adam = AdamOptions(0.02).betas({0.8, 0.95}).eps(1e-6).weight_decay(0.02).amsgrad(true);
  const auto adamw = AdamWOptions(0.02).betas({0.8, 0.95}).eps(1e-6).weight_decay(0).amsgrad(true);
  const auto rmsprop =
      RMSpropOptions(0.01).alpha(0.9).eps(1e-6).weight_decay(0.1).momentum(0.5).centered(true);
  auto adagrad = AdagradOptions(0.1).lr_decay(0.1).weight_decay(0.01);
  adagrad.initial_accumulator_value(2).eps(1e-6);
  auto lbfgs = LBFGSOptions(0.5).max_iter(4).max_eval(9).tolerance_grad(1e-6);
  lbfgs.tolerance_change(1e-8).history_size(3).line_search_fn("strong_wolfe");
  static const std::vector<Row> all = {
      {"SGD", with<SGD>(sgd), with<SGD>(nesterov)},
      {"SGD without momentum", with<SGD>(SGDOptions(0.03)),
       with<SGD>(SGDOptions(0.05).momentum(0.5))},
      {"Adam", with<Adam>(adam), with<Adam>(AdamOptions(0.1))},
      {"AdamW", with<AdamW>(adamw), with<AdamW>(AdamWOptions(0.1))},
      {"RMSprop", with<RMSprop>(rmsprop), with<RMSprop>(RMSpropOptions(0.02))},
      {"Adagrad", with<Adagrad>(adagrad), with<Adagrad>(AdagradOptions(0.2))},
      {"LBFGS", with<LBFGS>(lbfgs), with<LBFGS>(LBFGSOptions(0.1).max_iter(1)), true},
  };
  return all;
}

// Parameters of all kinds: trained ones, one that backward does not reach, one that is frozen, and
// one of whole numbers.
struct Run {
  Run(const Row& row, const Make& make)
      : a(normal({3, 2}, 1).requires_grad_()),
        b(normal({4}, 2, at::kFloat).requires_grad_()),
        unused(at::ones({2}).requires_grad_()),
        frozen(at::ones({3}, at::kBFloat16)),
        counts(at::ones({2}, at::kLong)) {
    if (row.only_floats) {
      optimizer = make({{a, b, unused, frozen}});
    } else {
      optimizer = make({{a, unused, counts}, {frozen, b}});
    }
  }

  void steps(int count, double goal) const {
    for (int i = 0; i < count; ++i) {
      optimizer->step([&] {
        optimizer->zero_grad();
        at::Tensor loss = (a - goal).pow(2).sum() + (b * a.sum() - goal).pow(2).sum();
        loss.backward();
        return loss;
      });
    }
  }

  Names tensors() const {
    return {{"a", a}, {"b", b}, {"unused", unused}, {"frozen", frozen}, {"counts", counts}};
  }

  // LibTorch's own words for the options of all groups.
  std::string options() const {
    std::string all;
    for (const auto& group : optimizer->param_groups()) {
      all += ronde::detail::bytes_of_archive(
          [&](auto& archive) { group.options().serialize(archive); });
    }
    return all;
  }

  at::Tensor a, b, unused, frozen, counts;
  std::unique_ptr<Optimizer> optimizer;
};

at::Tensor momentum(const SGD& sgd, const at::Tensor& p) {
  return static_cast<const SGDParamState&>(*sgd.state().at(p.unsafeGetTensorImpl()))
      .momentum_buffer();
}

void step_with_ones(Optimizer& optimizer, const at::Tensor& p) {
  p.mutable_grad() = at::ones_like(p);
  optimizer.step([&] { return (p.detach() * p.detach()).sum(); });
}

void check_pair(const Row& row, bool swapped, int root, int root_steps, int other_steps) {
  CAPTURE(row.name, swapped, root, root_steps, other_steps);
  const Make& roots = swapped ? row.other : row.one;
  const Make& others = swapped ? row.one : row.other;
  const bool is_root = ronde::rank() == root;
  const Run mine(row, is_root ? roots : others);
  mine.steps(is_root ? root_steps : other_steps, is_root ? 1.0 : -3.0);
  ronde::broadcast_parameters(mine.tensors(), root);
  ronde::broadcast_optimizer_state(*mine.optimizer, root);

  const Run oracle(row, roots);
  oracle.steps(root_steps, 1.0);
  CHECK(mine.options() == oracle.options());
  CHECK(mine.optimizer->state().size() == oracle.optimizer->state().size());
  for (int i = 0; i < 3; ++i) {
    mine.steps(1, 2.0);
    oracle.steps(1, 2.0);
    for (const auto& item : mine.tensors()) {
      CAPTURE(item.key());
      CHECK(same_bits(item.value(), oracle.tensors()[item.key()]));
    }
  }
}

TEST_CASE("every optimizer goes on as the root's in every pair of states and options") {
  for (const Row& row : rows()) {
    CHECK(Run(row, row.one).options() != Run(row, row.other).options());
    for (const bool swapped : {false, true}) {
      check_pair(row, swapped, 0, 0, 0);
      check_pair(row, swapped, ronde::size() - 1, 3, 0);
      check_pair(row, swapped, 0, 0, 2);
      check_pair(row, swapped, ronde::size() - 1, 3, 5);
      check_pair(row, swapped, 0, 1, 1);
    }
  }
}

TEST_CASE("an optimizer whose load fails on one rank is as before on all", "[n2][n4]") {
  // Fails after load() has changed everything.
  class FragileOptimizer : public SGD {
   public:
    using SGD::SGD;
    void load(torch::serialize::InputArchive& archive) override {
      SGD::load(archive);
      if (ronde::rank() == 1) throw std::runtime_error("rank 1 does not like it");
    }
  };
  const double own = 1.0 + ronde::rank();
  const at::Tensor p = at::ones({2}).requires_grad_();
  FragileOptimizer sgd({p}, SGDOptions(own).momentum(0.9));
  p.mutable_grad() = at::full({2}, own);
  sgd.step();
  check_refused([&] { ronde::broadcast_optimizer_state(sgd, 0); },
                {"rank 1: rank 1 does not like it"});
  CHECK(sgd.param_groups()[0].options().get_lr() == own);
  CHECK(torch::equal(momentum(sgd, p), at::full({2}, own)));
}

TEST_CASE("a root's state that is not of its parameters is refused on all ranks", "[n2]") {
  const at::Tensor p = at::ones({2, 3}).requires_grad_();
  const at::Tensor q = at::ones({4}).requires_grad_();
  for (const Row& row : rows()) {
    if (row.name == "SGD without momentum") continue;
    CAPTURE(row.name);
    // The other LBFGS is the one that LibTorch can save after a step.
    const bool flat = row.name == "LBFGS";
    const Make& make = flat ? row.other : row.one;
    const auto mine = make({{p}});
    if (ronde::rank() == 1) {
      // LibTorch loads the state of another model without a word.
      const auto other = make({{q}});
      step_with_ones(*other, q);
      std::stringstream stream;
      torch::save(*other, stream);
      torch::load(*mine, stream);
    }
    check_refused([&] { ronde::broadcast_optimizer_state(*mine, 1); },
                  {"rank 1: the optimizer's state does not fit: of group 0" +
                       std::string(flat ? ", which is 6 elements of f32 in all"
                                        : " parameter 0, which is f32 [2, 3] on cpu") +
                       ", it has a ",
                   " of f32 [4] on cpu. Load the state that was saved with this model"});
  }
}

TEST_CASE("state is loaded for its own dtype, and keeps it if parameters get another", "[n1][n2]") {
  for (const Row& row : rows()) {
    if (row.name == "SGD without momentum") continue;
    CAPTURE(row.name);
    at::Tensor p = at::ones({2, 3}).requires_grad_();
    const auto optimizer = row.one({{p}});
    if (ronde::rank() == 0) step_with_ones(*optimizer, p);
    const std::string saved = ronde::save_bytes(*optimizer);
    ronde::load_bytes(*optimizer, saved);
    const auto wide = row.one({{ones_parameter({2, 3})}});
    if (ronde::rank() == 0) {
      check_refused([&] { ronde::load_bytes(*wide, saved); },
                    {" of f32 [", row.name == "LBFGS" ? "6 elements of f64" : "is f64 [2, 3]"});
    }
    // LibTorch trains on with the state as it was.
    p.set_data(p.detach().to(at::kDouble));
    ronde::broadcast_(p.detach());
    ronde::broadcast_optimizer_state(*optimizer, 0);
    ronde::load_bytes(*optimizer, ronde::save_bytes(*optimizer));
    CHECK(same_on_all_ranks(p));
    if (row.name == "LBFGS") continue;  // LibTorch's own step does not mix dtypes
    step_with_ones(*optimizer, p);
    CHECK(same_on_all_ranks(p));
  }
}

TEST_CASE("optimizers of other groups or shapes are refused on all ranks", "[n2][n4]") {
  const int last = ronde::size() - 1;
  const bool odd = ronde::rank() == last;
  const std::string who = "rank " + std::to_string(last);
  const auto check = [&](const std::vector<Tensors>& groups, const std::string& part) {
    const auto adam = with<Adam>(AdamOptions(0.5 + ronde::rank()))(groups);
    check_refused([&] { ronde::broadcast_optimizer_state(*adam, 0); }, {part});
    CHECK(adam->param_groups()[0].options().get_lr() == 0.5 + ronde::rank());
  };
  const at::Tensor p = at::ones({2}).requires_grad_();
  const at::Tensor q = at::ones({odd ? 3 : 2}).requires_grad_();
  check({{p, q}}, who +
                      " has \"group 0 parameter 1: f32 [3] on cpu\" where rank 0 has \"group 0 "
                      "parameter 1: f32 [2] on cpu\"");
  check(odd ? std::vector<Tensors>{{p}, {}} : std::vector<Tensors>{{p}},
        who + " has \"2 parameter groups\" where rank 0 has \"1 parameter groups\"");
}

TEST_CASE("state follows its parameters where they are on several devices", "[n2]") {
  // A meta tensor, which has no values, stands for a second device.
  const at::Tensor far = at::ones({2}, at::kMeta).requires_grad_();
  const at::Tensor near_one = at::ones({2}).requires_grad_();
  Adam adam({far, near_one}, AdamOptions(0.1));
  if (ronde::rank() == 0) {
    far.mutable_grad() = at::ones({2}, at::kMeta);
    near_one.mutable_grad() = at::full({2}, 2.0);
    adam.step();
  }
  ronde::broadcast_optimizer_state(adam, 0);
  const auto average = [&](const at::Tensor& p) {
    return static_cast<const AdamParamState&>(*adam.state().at(p.unsafeGetTensorImpl())).exp_avg();
  };
  CHECK(average(far).is_meta());
  CHECK(near(average(near_one), at::full({2}, 0.2), 1e-6));
}

}  // namespace
}  // namespace ronde_test::optimizer_state_test
