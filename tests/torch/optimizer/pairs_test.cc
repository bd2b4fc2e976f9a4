// SPDX-License-Identifier: Apache-2.0
// All pairs of what can be chosen for a DistributedOptimizer: N ranks do what one process does with
// the whole batch, and keep the same bits.
#include <algorithm>
#include <bit>
#include <iterator>
#include <set>
#include <span>

#include "tests/support/harness/case_table.h"
#include "tests/support/oracle/half_rounding.h"
#include "tests/torch/layouts.h"

namespace ronde_test::pairs_test {
namespace {

/// Factors and their choices; the first choice is the default of users.
using Factors = std::map<std::string, std::vector<std::string>>;

using Choice = std::pair<std::string, std::string>;  // a factor and its choice
using Pair = std::pair<Choice, Choice>;

/// A choice for each factor.
struct Row : std::map<std::string, std::string> {
  using map::map;

  bool is(const std::string& factor, const std::string& level) const { return at(factor) == level; }
};

/// The options of DistributedOptimizer, and ways of using it.
const Factors& optimizer_factors() {
  static const Factors factors = {{"inner", {"sgd", "adam", "adamw", "rmsprop", "adagrad"}},
                                  {"op", {"average", "sum", "adasum", "deltas"}},
                                  {"scales", {"none", "both"}},
                                  {"passes", {"2", "1", "3"}},
                                  {"average_passes", {"no", "yes"}},
                                  {"predivide", {"1", "2"}},
                                  {"groups", {"none", "3", "lists"}},
                                  {"compression", {"none", "fp16", "bf16"}},
                                  {"embedding", {"dense", "sparse", "as_dense"}},
                                  {"local", {"none", "expert", "unscaled"}},
                                  {"views", {"yes", "no"}},
                                  {"zero_grad", {"none", "zero"}},
                                  {"clip", {"no", "synchronize", "skip"}},
                                  {"frozen", {"none", "thaws", "freezes"}},
                                  {"calls", {"plain", "closure", "no_sync"}},
                                  {"hook", {"no", "yes"}},
                                  {"find_nonfinite", {"no", "yes"}},
                                  {"scaler", {"no", "yes"}},
                                  {"param_groups", {"1", "2"}},
                                  {"scheduler", {"none", "step"}},
                                  {"set", {"all", "reversed"}}};
  return factors;
}

/// Returns whether LibTorch or Ronde refuses the row.
bool is_forbidden(const Row& row) {
  if (!row.is("op", "average") && row.is("predivide", "2")) return true;
  // A closure runs backward, and the step follows.
  if (row.is("calls", "closure") && (!row.is("clip", "no") || row.is("scaler", "yes"))) return true;
  if (row.is("calls", "no_sync") && row.is("passes", "1")) return true;  // the last is outside
  // The oracle's Adasum is of f64, and there is none of sparse gradients.
  const bool is_adasum = row.is("op", "adasum") || row.is("op", "deltas");
  if (is_adasum && !row.is("compression", "none")) return true;
  if (row.is("op", "adasum") && row.is("embedding", "sparse")) return true;
  // With deltas no gradient is reduced, so there are no groups, and none is skipped.
  if (row.is("op", "deltas") && (!row.is("groups", "none") || row.is("clip", "skip"))) return true;
  // LibTorch has no sparse form of these optimizers, nor of clip_grad_norm_.
  if (!row.is("embedding", "sparse")) return false;
  return (!row.is("inner", "sgd") && !row.is("inner", "adagrad")) || !row.is("clip", "no");
}

/// Returns the choices that are not the default ones.
std::string text_of(const Row& row) {
  std::string text;
  for (const auto& [factor, level] : row) {
    if (level != optimizer_factors().at(factor).front()) text += factor + "-" + level + " ";
  }
  return text;
}

/// Returns every two choices of different factors, also forbidden ones.
std::vector<Pair> all_pairs() {
  std::vector<Choice> choices;
  for (const auto& [factor, levels] : optimizer_factors()) {
    for (const std::string& level : levels) choices.emplace_back(factor, level);
  }
  std::vector<Pair> pairs;
  for (const Choice& a : choices) {
    for (const Choice& b : choices) {
      if (a.first < b.first) pairs.emplace_back(a, b);
    }
  }
  return pairs;
}

/// The missing choices are the default ones.
Row completed(Row row) {
  for (const auto& [factor, levels] : optimizer_factors()) row.try_emplace(factor, levels.front());
  return row;
}

std::vector<Pair> pairs_of(const Row& row) {
  std::vector<Pair> pairs;
  for (auto a = row.begin(); a != row.end(); ++a) {
    for (auto b = std::next(a); b != row.end(); ++b) pairs.emplace_back(*a, *b);
  }
  return pairs;
}

/// The row with the choice for this factor that covers the most open pairs.
Row with_best(const Row& row, const std::string& factor, const std::set<Pair>& open) {
  Row best;
  std::ptrdiff_t most = -1;
  for (const std::string& level : optimizer_factors().at(factor)) {
    Row tried = row;
    tried[factor] = level;
    if (is_forbidden(completed(tried))) continue;
    const std::ptrdiff_t gain = std::ranges::count_if(
        pairs_of(tried), [&](const Pair& pair) { return open.contains(pair); });
    if (gain <= most) continue;
    most = gain;
    best = tried;
  }
  return best;
}

/// Returns rows in which each pair occurs that is not forbidden. Greedy: a row begins with such a
/// pair, and gets for one factor after the other the choice that covers the most pairs not covered
/// yet (the idea of AETG: Cohen, Dalal, Fredman and Patton, 1997).
std::vector<Row> pairwise_rows() {
  std::set<Pair> open;
  for (const Pair& pair : all_pairs()) {
    if (!is_forbidden(completed({pair.first, pair.second}))) open.insert(pair);
  }
  std::vector<Row> rows;
  while (!open.empty()) {
    Row row = {open.rbegin()->first, open.rbegin()->second};
    for (const auto& [factor, levels] : optimizer_factors()) {
      if (!row.contains(factor)) row = with_best(row, factor, open);
    }
    for (const Pair& pair : pairs_of(row)) open.erase(pair);
    rows.push_back(row);
  }
  return rows;
}

/// The loss scale: an f16 holds any gradient times this.
constexpr double kLossScale = 64.0;
constexpr std::int64_t kBatch = 6;
constexpr int kCompared = 12;
constexpr int kSteps = 200;

/// Batches of one rank between two steps of the optimizer.
int passes_of(const Row& row) {
  return std::stoi(row.at("passes"));
}

/// Each rank trains the part of the model that is named so by itself.
bool has_expert(const Row& row) {
  return !row.is("local", "none");
}

bool is_of_expert(const std::string& name) {
  return name.starts_with("expert.");
}

/// Layers that are used always, on some ranks in some steps, or never; an embedding; and a part
/// that each rank may train for itself. All in f64.
struct PairsNetImpl : torch::nn::Module {
  /// `sparse`: gradients of the embedding are.
  PairsNetImpl(const Row& row, int rank, bool sparse) {
    first = register_module("first", torch::nn::Linear(5, 7));
    second = register_module("second", torch::nn::Linear(7, 3));
    side = register_module("side", torch::nn::Linear(5, 3));
    never = register_module("never", torch::nn::Linear(2, 2));
    embedding = register_module(
        "embedding", torch::nn::Embedding(torch::nn::EmbeddingOptions(9, 5).sparse(sparse)));
    expert = register_module("expert", torch::nn::Linear(3, 3));
    to(at::kDouble);
    fill_normal(parameters(), 1, 0.5);
    if (has_expert(row)) fill_normal(expert->parameters(), 100 + 10 * rank, 0.5);
    if (row.is("hook", "yes")) {
      first->weight.register_hook([](const at::Tensor& gradient) { return gradient * 2; });
    }
  }

  at::Tensor forward(const at::Tensor& x, const at::Tensor& words, bool use_side) {
    const at::Tensor input = x + embedding->forward(words);
    at::Tensor y = second->forward(torch::tanh(first->forward(input)));
    if (use_side) y = y + side->forward(x);
    return y + torch::tanh(expert->forward(y));
  }

  torch::nn::Linear first{nullptr}, second{nullptr}, side{nullptr}, never{nullptr}, expert{nullptr};
  torch::nn::Embedding embedding{nullptr};
};
TORCH_MODULE(PairsNet);

/// The loss of one rank on one of its batches of a step.
at::Tensor loss_of(PairsNet& net, int step, int pass, int rank) {
  const int seed = 1000 * step + 100 * pass + 10 * rank;
  const at::Tensor x = normal({kBatch, 5}, seed + 1), y = normal({kBatch, 3}, seed + 2);
  const at::Tensor words = (normal({kBatch}, seed + 3).abs() * 4).to(at::kLong).clamp(0, 8);
  // Rank 0 alone uses the side branch, and in odd steps nobody does.
  const bool use_side = rank == 0 && step % 2 == 0;
  return torch::mse_loss(net->forward(x, words, use_side), y);
}

template <typename Optimizer, typename Options>
std::unique_ptr<torch::optim::Optimizer> make_with(const Row& row, const PairsNet& net,
                                                   const Options& options) {
  // The parameters of the second layer may be a group of their own, with a smaller rate.
  std::vector<Tensors> groups(row.is("param_groups", "2") ? 2 : 1);
  for (const auto& item : net->named_parameters()) {
    (item.key().starts_with("second") ? groups.back() : groups.front()).push_back(item.value());
  }
  std::vector<torch::optim::OptimizerParamGroup> made = {{groups.front()}};
  if (groups.size() == 2) {
    auto slower = std::make_unique<Options>(options);
    slower->set_lr(0.5 * slower->get_lr());
    made.emplace_back(groups.back(), std::move(slower));
  }
  return std::make_unique<Optimizer>(made, options);
}

std::unique_ptr<torch::optim::Optimizer> make_inner(const Row& row, const PairsNet& net) {
  using namespace torch::optim;
  const std::string& inner = row.at("inner");
  if (inner == "adam") return make_with<Adam>(row, net, AdamOptions(0.01));
  if (inner == "adamw") return make_with<AdamW>(row, net, AdamWOptions(0.01));
  if (inner == "rmsprop") return make_with<RMSprop>(row, net, RMSpropOptions(0.005));
  if (inner == "adagrad") return make_with<Adagrad>(row, net, AdagradOptions(0.02));
  return make_with<SGD>(row, net, SGDOptions(0.01).momentum(0.5));
}

std::unique_ptr<torch::optim::LRScheduler> make_scheduler(const Row& row,
                                                          torch::optim::Optimizer& inner) {
  if (row.is("scheduler", "none")) return nullptr;
  return std::make_unique<torch::optim::StepLR>(inner, 3, 0.98);
}

void freeze_or_unfreeze(PairsNet& net, const Row& row, int step) {
  if (row.is("frozen", "none")) return;
  const bool is_frozen = row.is("frozen", "thaws") ? step < 3 : step >= 3;
  net->second->bias.requires_grad_(!is_frozen);
}

/// Clips the parameters but those of the expert, where the row says so.
void clip(PairsNet& net, const Row& row) {
  if (row.is("clip", "no")) return;
  Tensors clipped;
  for (const auto& item : net->named_parameters()) {
    if (!is_of_expert(item.key())) clipped.push_back(item.value());
  }
  torch::nn::utils::clip_grad_norm_(clipped, 0.3);
}

/// Returns the prescale of gradients. The program divides by the passes within no_sync() itself.
double prescale_of(const Row& row) {
  double scale = row.is("scales", "both") ? 0.5 : 1.0;
  if (row.is("average_passes", "yes") && row.is("calls", "no_sync")) scale /= passes_of(row);
  return row.is("predivide", "2") ? scale / 2 : scale;
}

double postscale_of(const Row& row) {
  const double scale = row.is("scales", "both") ? 3.0 : 1.0;
  return row.is("predivide", "2") ? scale * 2 : scale;
}

/// The values after they were elements of the type in which gradients travel, times the loss scale.
at::Tensor on_the_wire(const at::Tensor& values, const Row& row) {
  if (row.is("compression", "none")) return values;
  const auto half = row.is("compression", "fp16") ? ronde::DataType::F16 : ronde::DataType::BF16;
  const double scale = row.is("scaler", "yes") ? kLossScale : 1.0;
  at::Tensor sent = values.clone(at::MemoryFormat::Contiguous);
  const std::span elements(sent.data_ptr<double>(), static_cast<std::size_t>(sent.numel()));
  for (double& value : elements) value = ronde::test::rounded_to(half, value * scale) / scale;
  return sent;
}

at::Tensor adasum_of(Tensors of_ranks, const Row& row) {
  if (row.is("set", "reversed")) std::reverse(of_ranks.begin(), of_ranks.end());
  // Adasum of multiples is a multiple of it.
  return adasum(of_ranks) * (prescale_of(row) * postscale_of(row));
}

at::Tensor combined(const Tensors& of_ranks, const Row& row, bool is_sparse) {
  if (row.is("op", "adasum")) return adasum_of(of_ranks, row);
  // Dense halves are computed in f32, and the result is rounded once more.
  const bool in_floats = !row.is("compression", "none") && !is_sparse;
  at::Tensor sum = at::zeros(of_ranks.front().sizes(), in_floats ? at::kFloat : at::kDouble);
  for (const at::Tensor& gradient : of_ranks) {
    sum += on_the_wire(gradient * prescale_of(row), row).to(sum.scalar_type());
  }
  const auto ranks = static_cast<double>(of_ranks.size());
  const bool is_average = row.is("op", "average");
  const bool multiplies = std::has_single_bit(of_ranks.size());
  sum = sum * (is_average && multiplies ? postscale_of(row) / ranks : postscale_of(row));
  if (is_average && !multiplies) sum = sum / ranks;
  return is_sparse ? sum.to_sparse(1) : on_the_wire(sum.to(at::kDouble), row);
}

struct Rank {
  Rank(const Row& row, int rank)
      : net(row, rank, row.is("embedding", "sparse")),
        inner(make_inner(row, net)),
        scheduler(make_scheduler(row, *inner)) {}

  PairsNet net;
  std::unique_ptr<torch::optim::Optimizer> inner;
  std::unique_ptr<torch::optim::LRScheduler> scheduler;
};

void backward_of(PairsNet& net, const Row& row, int step, int rank) {
  at::Tensor loss = torch::zeros({}, at::kDouble);
  for (int pass = 0; pass < passes_of(row); ++pass) loss = loss + loss_of(net, step, pass, rank);
  // Passes within no_sync() are not counted.
  const bool divides = row.is("average_passes", "yes") && !row.is("calls", "no_sync");
  (divides ? loss / passes_of(row) : loss).backward();
}

/// A rank's own are scaled as if they were the sum of all ranks', where the row says so.
void scale_own_gradients(std::vector<Rank>& ranks, const Row& row) {
  if (!row.is("local", "expert") || row.is("op", "adasum")) return;
  double scale = prescale_of(row) * postscale_of(row);
  if (row.is("op", "average")) scale /= static_cast<double>(ranks.size());
  for (const Rank& rank : ranks) {
    for (const at::Tensor& parameter : rank.net->expert->parameters()) {
      parameter.mutable_grad() = parameter.grad() * scale;
    }
  }
}

/// Gives all ranks the gradients that theirs combine to.
void combine_gradients(std::vector<Rank>& ranks, const Row& row) {
  scale_own_gradients(ranks, row);
  const auto named = ranks.front().net->named_parameters();
  for (std::size_t i = 0; i < named.size(); ++i) {
    if (has_expert(row) && is_of_expert(named[i].key())) continue;
    Tensors of_ranks;
    bool is_used = false;
    for (const Rank& rank : ranks) {
      const at::Tensor gradient = rank.net->parameters()[i].grad();
      is_used = is_used || gradient.defined();
      of_ranks.push_back(gradient.defined() ? gradient.to_dense()
                                            : at::zeros_like(named[i].value()));
    }
    if (!is_used) continue;
    const bool is_sparse = row.is("embedding", "sparse") && named[i].key() == "embedding.weight";
    const at::Tensor gradient = combined(of_ranks, row, is_sparse);
    for (const Rank& rank : ranks) rank.net->parameters()[i].mutable_grad() = gradient.clone();
  }
}

/// All ranks get the change that Adasum makes of theirs.
void combine_deltas(std::vector<Rank>& ranks, const Row& row, const Tensors& before) {
  const auto named = ranks.front().net->named_parameters();
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (has_expert(row) && is_of_expert(named[i].key())) continue;
    Tensors deltas;
    for (const Rank& rank : ranks) deltas.push_back(rank.net->parameters()[i] - before[i]);
    const at::Tensor after = before[i] + adasum_of(deltas, row);
    for (const Rank& rank : ranks) rank.net->parameters()[i].copy_(after);
  }
}

/// Trains all ranks for this number of steps by the definition of the options, one after the other
/// in this process, without Ronde. Returns this rank's model.
PairsNet train_whole(const Row& row, int steps) {
  const bool is_of_deltas = row.is("op", "deltas");
  std::vector<Rank> all = by_rank([&](int rank) { return Rank(row, rank); });
  for (int step = 0; step < steps; ++step) {
    Tensors before;
    for (const at::Tensor& p : all.front().net->parameters()) before.push_back(p.detach().clone());
    for (int rank = 0; rank < ronde::size(); ++rank) {
      Rank& one = all[index(rank)];
      freeze_or_unfreeze(one.net, row, step);
      one.inner->zero_grad(row.is("zero_grad", "none"));
      backward_of(one.net, row, step, rank);
    }
    const torch::NoGradGuard no_grad;
    if (!is_of_deltas) combine_gradients(all, row);
    for (Rank& one : all) {
      clip(one.net, row);
      one.inner->step();
      if (one.scheduler) one.scheduler->step();
    }
    if (is_of_deltas) combine_deltas(all, row, before);
  }
  return mine_of(all).net;
}

const std::vector<Row>& rows() {
  static const std::vector<Row> all = pairwise_rows();
  return all;
}

ronde::GradientGroups groups_of(const Row& row, const PairsNet& net) {
  if (row.is("groups", "3")) return 3;
  if (row.is("groups", "lists")) {
    return {{net->first->weight, net->second->weight, net->side->weight},
            {net->second->bias, net->never->weight, net->embedding->weight}};
  }
  return {};
}

DistributedOptimizerOptions options_of(const Row& row, const PairsNet& net) {
  DistributedOptimizerOptions options;
  if (row.is("set", "reversed")) {
    options.process_set =
        ronde::add_process_set(by_rank([](int rank) { return ronde::size() - 1 - rank; }));
  }
  if (row.is("op", "sum")) options.op = ReduceOp::Sum;
  const bool is_of_deltas = row.is("op", "deltas");
  if (row.is("op", "adasum") || is_of_deltas) options.op = ReduceOp::Adasum;
  options.adasum_of_deltas = is_of_deltas;
  if (has_expert(row)) options.local_parameters = net->expert->parameters();
  options.scale_local_gradients = !row.is("local", "unscaled");
  if (row.is("scales", "both")) {
    options.prescale = 0.5;
    options.postscale = 3.0;
  }
  options.backward_passes_per_step = row.is("calls", "no_sync") ? 1 : passes_of(row);
  options.average_aggregated_gradients = row.is("average_passes", "yes");
  // Passes within no_sync() are not counted.
  if (row.is("calls", "no_sync") && row.is("average_passes", "yes")) {
    options.prescale /= passes_of(row);
  }
  options.gradient_predivide_factor = row.is("predivide", "2") ? 2.0 : 1.0;
  options.groups = groups_of(row, net);
  if (row.is("compression", "fp16")) options.compression = Compression::fp16();
  if (row.is("compression", "bf16")) options.compression = Compression::bf16();
  options.sparse_as_dense = row.is("embedding", "as_dense");
  options.gradient_views = row.is("views", "yes");
  options.find_nonfinite = row.is("find_nonfinite", "yes");
  return options;
}

at::Tensor backward(PairsNet& net, const Row& row, int step, DistributedOptimizer& optimizer,
                    const ronde::GradScaler& scaler) {
  at::Tensor loss;
  const int passes = passes_of(row);
  for (int pass = 0; pass < passes; ++pass) {
    loss = loss_of(net, step, pass, ronde::rank());
    std::optional<DistributedOptimizer::NoSync> guard;
    if (row.is("calls", "no_sync") && pass + 1 < passes) guard.emplace(optimizer.no_sync());
    scaler.scale(loss).backward();
  }
  return loss;
}

void train_step(PairsNet& net, const Row& row, int step, DistributedOptimizer& optimizer,
                ronde::GradScaler& scaler) {
  freeze_or_unfreeze(net, row, step);
  optimizer.zero_grad(row.is("zero_grad", "none"));
  if (row.is("calls", "closure")) {
    optimizer.step([&] { return backward(net, row, step, optimizer, scaler); });
    return;
  }
  backward(net, row, step, optimizer, scaler);
  if (!row.is("clip", "no")) {
    scaler.unscale_(optimizer);
    clip(net, row);
  }
  std::optional<DistributedOptimizer::SkipSynchronize> guard;
  if (row.is("clip", "skip")) guard.emplace(optimizer.skip_synchronize());
  CHECK(scaler.step(optimizer));
  scaler.update();
}

void check_row(const Row& row) {
  CAPTURE(text_of(row));
  PairsNet net(row, ronde::rank(), /*sparse=*/!row.is("embedding", "dense"));
  const auto inner = make_inner(row, net);
  const auto scheduler = make_scheduler(row, *inner);
  ronde::GradScaler scaler({.init_scale = kLossScale, .enabled = row.is("scaler", "yes")});
  const DistributedOptimizerOptions options = options_of(row, net);
  {
    DistributedOptimizer optimizer(*inner, net->named_parameters(), options);
    for (int step = 0; step < kSteps; ++step) {
      train_step(net, row, step, optimizer, scaler);
      if (scheduler) scheduler->step();
      if (step + 1 != kCompared) continue;
      const PairsNet whole = train_whole(row, kCompared);
      for (const auto& item : net->named_parameters()) {
        CAPTURE(item.key());
        CHECK(near(item.value(), whole->named_parameters()[item.key()], 1e-9));
      }
    }
  }
  for (const auto& item : net->named_parameters()) {
    CAPTURE(item.key());
    const bool is_own = has_expert(row) && is_of_expert(item.key());
    if (!is_own) CHECK(same_on_all_ranks(item.value().detach()));
    CHECK(at::isfinite(item.value()).all().item<bool>());
  }
  CHECK_FALSE(net->never->weight.grad().defined());
  if (!(options.process_set == ProcessSet{})) ronde::remove_process_set(options.process_set);
}

// A case for each inner optimizer, for the watchdog.
[[maybe_unused]] const bool kRegistered = [] {
  for (const std::string& inner : optimizer_factors().at("inner")) {
    ronde::test::add_case("all rows of " + inner + " train as one process does", "[n2][n3]",
                          [inner] {
                            for (const Row& row : rows()) {
                              if (row.is("inner", inner)) check_row(row);
                            }
                          });
  }
  return true;
}();

}  // namespace
}  // namespace ronde_test::pairs_test
