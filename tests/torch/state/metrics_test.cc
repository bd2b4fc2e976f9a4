// SPDX-License-Identifier: Apache-2.0
#include "tests/torch/support.h"

namespace ronde_test::metrics_test {
namespace {

using ronde::MetricAverage;
using ronde::WarmupLR;
using torch::optim::SGD;
using torch::optim::SGDOptions;

// Batch i of a rank: its loss and number of samples.
double loss_of(int rank, int i) {
  return 1.0 / (1 + rank + 3 * i);
}
int samples_of(int rank, int i) {
  return 1 + (rank * 5 + i * 3) % 7;
}

// The means of loss and accuracy over `batches(rank)` batches of each of these ranks; NaN if there
// are none. The accuracy, rank + i, has no weights.
std::pair<double, double> means_of(const std::vector<int>& ranks,
                                   const std::function<int(int)>& batches) {
  double losses = 0, samples = 0, accuracies = 0, count = 0;
  for (const int rank : ranks) {
    for (int i = 0; i < batches(rank); ++i) {
      losses += loss_of(rank, i) * samples_of(rank, i);
      samples += samples_of(rank, i);
      accuracies += rank + i;
      ++count;
    }
  }
  return {losses / samples, accuracies / count};
}

std::vector<int> all_ranks() {
  return by_rank([](int rank) { return rank; });
}

bool close(double a, double b) {
  return std::abs(a - b) <= 1e-14 * std::abs(b);
}

void add_batches(MetricAverage& metrics, int batches) {
  for (int i = 0; i < batches; ++i) {
    metrics.add("loss", loss_of(ronde::rank(), i), samples_of(ronde::rank(), i));
    metrics.add("accuracy", at::full({1}, ronde::rank() + i, at::kFloat));
  }
}

TEST_CASE("metrics are averaged over all samples of all ranks, some of which may have none") {
  const int size = ronde::size();
  MetricAverage metrics;
  const std::vector<std::function<int(int)>> shards = {
      [](int) { return 4; }, [](int rank) { return 1 + rank; },
      [](int rank) { return rank == 0 ? 0 : 3; },
      [size](int rank) { return rank == size - 1 ? 2 : 0; }};
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const auto& batches = shards[i];
      CAPTURE(round, i);
      metrics.reset();
      add_batches(metrics, batches(ronde::rank()));
      const std::map<std::string, double> means = metrics.average();
      const auto [loss, accuracy] = means_of(all_ranks(), batches);
      if (std::isnan(loss)) {
        CHECK(means.empty());
        continue;
      }
      REQUIRE(means.size() == 2);
      CHECK(close(means.at("loss"), loss));
      CHECK(means.at("accuracy") == accuracy);
      CHECK(same_on_all_ranks(full({1}, means.at("loss"))));
      // Asking changes nothing.
      CHECK(metrics.average() == means);
    }
  }
  metrics.reset();
  CHECK(metrics.average().empty());
}

TEST_CASE("a weight of zero does not count, NaN and infinity do", "[n2]") {
  MetricAverage metrics({.name = "special"});
  const bool first = ronde::rank() == 0;
  metrics.add("empty batch", first ? std::nan("") : 3.0, first ? 0 : 2);
  metrics.add("no batch", 1.0, 0);
  metrics.add("not a number", first ? std::nan("") : 3.0);
  metrics.add("infinite", first ? HUGE_VAL : 3.0);
  metrics.add("large", 1e300, 1e6);
  const auto means = metrics.average();
  CHECK(means.at("empty batch") == 3.0);
  CHECK(std::isnan(means.at("no batch")));
  CHECK(std::isnan(means.at("not a number")));
  CHECK(means.at("infinite") == HUGE_VAL);
  CHECK(close(means.at("large"), 1e300));
}

TEST_CASE("metrics whose names differ are refused on all ranks, in any order", "[n2][n4]") {
  const int last = ronde::size() - 1;
  MetricAverage metrics;
  const auto add = [&](const std::string& name) {
    metrics.add(name, (name == "a" ? 0 : 7) + ronde::rank());
  };
  add(ronde::rank() == 0 ? "a" : "b");
  add(ronde::rank() == 0 ? "b" : "a");
  CHECK(metrics.average() ==
        std::map<std::string, double>{{"a", mean_rank()}, {"b", 7 + mean_rank()}});
  metrics.reset();
  metrics.add(ronde::rank() == last ? "top5" : "top1", 1);
  metrics.add("loss", 1);
  check_refused([&] { metrics.average(); },
                {"ronde::MetricAverage: the ranks differ. Add the same metrics on every "
                 "rank, or none:",
                 "rank " + std::to_string(last) + " has \"top5\" where rank 0 has \"top1\""});
  metrics.reset();
  if (ronde::rank() != 0) {
    for (const char* name : {"b", "a"}) metrics.add(name, 1);
  }
  if (ronde::rank() == last) metrics.add("c", 1);
  if (ronde::size() > 2) {
    // The first that has any speaks.
    check_refused([&] { metrics.average(); }, {"rank 3 has \"c\" where rank 1 has nothing more"});
  } else {
    CHECK(metrics.average().size() == 3);
  }
  check_refused([&] { metrics.add("x", 1, -1); }, {"the weight of \"x\" is -1"});
  check_refused([&] { metrics.add("x", 1, std::nan("")); }, {"the weight of"});
  check_refused([&] { metrics.add("a\nb", 1); }, {"line break"});
  check_refused([&] { metrics.add("x", at::ones({2})); }, {"f32 [2] on cpu"});
  check_refused([&] { metrics.add("x", at::Tensor()); }, {"undefined"});
}

TEST_CASE("metrics are averaged within a process set", "[n2][n4]") {
  std::vector<int> ranks = all_ranks();
  ranks.erase(ranks.begin());
  const ProcessSet set = ronde::add_process_set(ranks);
  MetricAverage metrics({.process_set = set});
  add_batches(metrics, 2);
  if (ronde::rank_in(set)) {
    CHECK(close(metrics.average().at("loss"), means_of(ranks, [](int) { return 2; }).first));
  } else {
    check_refused([&] { metrics.average(); }, {"rank 0 is not in process set"});
  }
  ronde::remove_process_set(set);
}

const std::vector<double> kRates = {0.1, 0.003};

// Two groups, one of which is fast.
std::unique_ptr<SGD> two_groups() {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double rate : kRates) {
    groups.emplace_back(Tensors{at::ones({1}).requires_grad_()},
                        std::make_unique<SGDOptions>(rate));
  }
  return std::make_unique<SGD>(groups, SGDOptions(1));
}

std::vector<double> rates(const torch::optim::Optimizer& optimizer) {
  std::vector<double> all;
  for (const auto& group : optimizer.param_groups()) all.push_back(group.options().get_lr());
  return all;
}

std::vector<double> times(double factor) {
  return {kRates[0] * factor, kRates[1] * factor};
}

TEST_CASE("the warm-up raises every group's rate by equal steps to the number of ranks' fold") {
  const double size = ronde::size();
  CHECK(ronde::scaled_learning_rate(0.1) == 0.1 * size);
  CHECK(ronde::scaled_learning_rate(0.1, 4) == 0.1 * 4 * size);
  for (const int steps : {0, 1, 3, 10}) {
    CAPTURE(steps);
    const auto sgd = two_groups();
    WarmupLR warmup(*sgd, {.steps = steps});
    for (int n = 0; n < steps; ++n) {
      CHECK(rates(*sgd) == times(1 + (size - 1) * n / steps));
      CHECK_FALSE(warmup.finished());
      CHECK(warmup.steps_taken() == n);
      warmup.step();
    }
    for (int n = 0; n < 3; ++n) {
      CHECK(rates(*sgd) == times(size));
      CHECK(warmup.finished());
      warmup.step();
    }
  }
  // Once warm, others may change the rate.
  const auto sgd = two_groups();
  WarmupLR warmup(*sgd, {.steps = 1, .scale = 0.5});
  warmup.step();
  CHECK(rates(*sgd) == times(0.5));
  sgd->param_groups()[0].options().set_lr(7);
  warmup.step();
  CHECK(rates(*sgd) == std::vector<double>{7, kRates[1] * 0.5});
}

TEST_CASE("a warm-up goes on wherever it was, the optimizer loaded before or after", "[n2]") {
  const int stop = GENERATE(0, 2, 5, 6, 9, 12);
  CAPTURE(stop);
  const auto make = [](SGD& sgd) {
    return WarmupLR(sgd, {.steps = 5}, std::make_shared<torch::optim::StepLR>(sgd, 3, 0.3));
  };
  const auto sgd = two_groups();
  WarmupLR warmup = make(*sgd);
  for (int n = 0; n < stop; ++n) warmup.step();
  const std::string saved_sgd = ronde::save_bytes(*sgd);
  const std::string saved = ronde::save_bytes(warmup);
  const auto before = two_groups();
  ronde::load_bytes(*before, saved_sgd);
  WarmupLR first = make(*before);
  ronde::load_bytes(first, saved);
  const auto after = two_groups();
  WarmupLR second = make(*after);
  ronde::load_bytes(second, saved);
  ronde::load_bytes(*after, saved_sgd);
  const auto counted = two_groups();
  WarmupLR third = make(*counted);
  third.set_steps_taken(stop);
  // The next scheduler begins at the full rate.
  const auto full = two_groups();
  for (auto& group : full->param_groups()) {
    group.options().set_lr(group.options().get_lr() * ronde::size());
  }
  torch::optim::StepLR alone(*full, 3, 0.3);
  for (int n = 5; n < stop; ++n) alone.step();
  for (int n = 0; n < 8; ++n) {
    for (const SGD* other : {before.get(), after.get(), counted.get()}) {
      CHECK(rates(*other) == rates(*sgd));
    }
    if (stop + n >= 5) {
      CHECK(rates(*sgd) == rates(*full));
      alone.step();
    }
    for (WarmupLR* scheduler : {&warmup, &first, &second, &third}) scheduler->step();
  }
  CHECK(second.steps_taken() == stop + 8);
}

TEST_CASE("learning rates that make no sense are refused", "[n2]") {
  const auto sgd = two_groups();
  const auto check_warmup = [&](const ronde::WarmupOptions& options, const std::string& part) {
    check_refused([&] { const WarmupLR warmup(*sgd, options); }, {part});
  };
  check_warmup({.steps = -1}, "-1 steps");
  check_warmup({.steps = std::int64_t{1} << 32}, "4294967296 steps");
  check_warmup({.scale = -1}, "scale is -1");
  check_warmup({.scale = std::nan("")}, "scale is nan");
  check_refused([] { ronde::scaled_learning_rate(1, 0); }, {"batches is 0"});
  check_refused([] { ronde::scaled_learning_rate(1, HUGE_VAL); }, {"batches is inf"});
  CHECK(rates(*sgd) == kRates);

  WarmupLR warmup(*sgd, {.steps = 1}, std::make_shared<torch::optim::StepLR>(*sgd, 3));
  check_refused([&] { warmup.set_steps_taken(-1); }, {"-1 steps"});
  const std::string saved = ronde::save_bytes(warmup);
  warmup.step();
  warmup.step();
  check_refused([&] { ronde::load_bytes(warmup, saved); }, {"cannot start anew"});
  SGD one({at::ones({1}).requires_grad_()}, SGDOptions(1));
  WarmupLR other(one, {.steps = 2});
  check_refused([&] { ronde::load_bytes(other, saved); },
                {"the rates of 2 parameter groups, the optimizer 1"});
  torch::serialize::InputArchive empty;
  check_refused([&] { other.load(empty); }, {"not written by WarmupLR::save"});
  one.add_param_group(torch::optim::OptimizerParamGroup({at::ones({1}).requires_grad_()}));
  check_refused([&] { other.step(); }, {"Construct it after the last group"});

  const ProcessSet set = ronde::add_process_set({1});
  if (ronde::rank() == 1) {
    CHECK(ronde::scaled_learning_rate(0.5, 1, set) == 0.5);
  } else {
    check_refused([&] { ronde::scaled_learning_rate(0.5, 1, set); }, {"not in"});
    check_warmup({.steps = 1, .process_set = set}, "rank 0 is not in process set");
  }
  ronde::remove_process_set(set);
}

TEST_CASE("what is refused on one rank alone names it, once there are ranks", "[n2][own]") {
  const std::vector<std::pair<std::string, std::function<void()>>> rows = {
      {"MetricAverage", [] { MetricAverage().add("x", 1, -1); }},
      {"scaled_learning_rate", [] { ronde::scaled_learning_rate(1, 0); }},
      {"WarmupLR", [] { const WarmupLR warmup(*two_groups(), {.steps = -1}); }},
      {"DistributedSampler", [] { ronde::DistributedSampler(0, {.rank = 0, .size = 1}); }},
      {"DistributedSampler::load",
       [] {
         torch::serialize::InputArchive empty;
         ronde::DistributedSampler(1, {.rank = 0, .size = 1}).load(empty);
       }},
      {"save_bytes", [] { ronde::save_bytes(torch::nn::Linear(nullptr)); }},
      {"load_bytes",
       [] {
         at::Tensor tensor;
         ronde::load_bytes(tensor, "garbage");
       }},
      {"GradScaler", [] { const ronde::GradScaler scaler({.init_scale = -1}); }},
      {"convert_sync_batch_norm",
       [] {
         torch::nn::BatchNorm1d norm(1);
         ronde::convert_sync_batch_norm(*norm);
       }},
  };
  for (const auto& [name, call] : rows) {
    CHECK(usage_error(call).find("ronde::" + name + ": ") == 0);
  }
  use_ronde();
  for (const auto& [name, call] : rows) {
    const std::string start = "rank " + std::to_string(ronde::rank()) + ": ronde::" + name + ": ";
    CHECK(usage_error(call).find(start) == 0);
  }
}

}  // namespace
}  // namespace ronde_test::metrics_test
