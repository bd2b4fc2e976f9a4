// SPDX-License-Identifier: Apache-2.0
// Trains EDSR on a folder of photographs, on one rank or, started by mpiexec, on many. Or measures
// how fast it trains.
#include <ronde/torch.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/benchmark.h"
#include "common/files.h"
#include "common/program.h"
#include "common/trainer.h"
#include "edsr_options.h"
#include "evaluation.h"
#include "images.h"
#include "photographs.h"
#include "train.h"

namespace edsr {
namespace {

struct Data {
  std::shared_ptr<const std::vector<Photograph>> training;
  std::vector<Photograph> held_out;
};

void check_batch(const Options& options) {
  if (options.batch % ronde::size() == 0) return;
  throw example::InputError("--batch " + std::to_string(options.batch) +
                            " cannot be shared equally by " + std::to_string(ronde::size()) +
                            " ranks; give a multiple of " + std::to_string(ronde::size()));
}

void prepare_output(const Options& options) {
  if (ronde::rank() != 0) return;
  example::prepare_folder(options.output, "--output");
  if (!options.json.empty()) example::prepare_file(options.json, "--json");
}

Data load_data(const Options& options) {
  const LoadOptions how = {.min_side = options.min_side,
                           .max_side = options.max_side,
                           .scale = options.network.scale,
                           .patch = options.patch};
  std::size_t left_out = 0;
  std::vector<Photograph> training = load_photographs(options.data, how, left_out);
  std::vector<Photograph> held_out = options.validation.empty()
                                         ? hold_out(training, options.held_out)
                                         : load_photographs(options.validation, how, left_out);
  if (training.empty() || held_out.empty()) {
    throw example::InputError(std::string("no photographs found by ") +
                              (training.empty() ? "--data" : "--validation") +
                              "; it needs JPEG or PNG files of at least --min-side pixels a side");
  }
  require_same_photographs(training);
  require_same_photographs(held_out);
  if (ronde::rank() == 0) {
    std::printf("%zu photographs to train on, %zu held out\n", training.size(), held_out.size());
    if (left_out > 0) {
      std::printf("%zu files left out: links, not .jpg, .jpeg or .png, or below --min-side\n",
                  left_out);
    }
  }
  return {std::make_shared<const std::vector<Photograph>>(std::move(training)),
          std::move(held_out)};
}

void print_score(const std::string& name, double bicubic, double network) {
  std::printf("%8.2f %8.2f %+8.2f  %s\n", bicubic, network, network - bicubic, name.c_str());
}

/// Writes the files that --output and --json ask for, and prints the same figures.
void write_results(Edsr& network, const std::vector<Photograph>& held_out,
                   const TrainingResult& training, const Evaluation& evaluation,
                   const Options& options) {
  const std::filesystem::path picture = options.output / "comparison.png";
  write_png(picture, compare_side_by_side(network, held_out));
  const Position& end = training.position;
  const double images_per_s =
      static_cast<double>(training.images) / std::max(training.seconds, 1e-9);
  const nlohmann::ordered_json json{
      {"ranks", ronde::size()},
      {"images_per_s_per_rank", images_per_s / ronde::size()},
      {"images_per_s_total", images_per_s},
      {"steps", end.step},
      {"loss_first", end.loss_first},
      {"loss_last", end.loss_last},
      {"psnr_bicubic", evaluation.psnr_bicubic},
      {"psnr_network", evaluation.psnr_network},
      {"parameters_identical", true},  // train() would have thrown
  };
  if (!options.json.empty()) example::write_text(options.json, json.dump(2) + "\n");

  std::printf("\n bicubic     EDSR     gain  PSNR in dB\n");
  for (const PhotographScore& score : evaluation.photographs) {
    print_score(score.name, score.bicubic, score.network);
  }
  print_score("mean", evaluation.psnr_bicubic, evaluation.psnr_network);
  std::printf("\n%d ranks hold the same network after %lld steps, %.1f images/s\n", ronde::size(),
              static_cast<long long>(end.step), images_per_s);
  std::printf("loss of the first step %.5f, of the last one %.5f\n", end.loss_first, end.loss_last);
  std::printf("picture     %s\ncheckpoint  %s\n", picture.c_str(),
              checkpoint_folder(options).c_str());
}

int run(const Options& options) {
  check_batch(options);
  // Before anything asks LibTorch for CUDA, as the seed below does.
  const torch::Device device = example::choose_device(options.benchmark.device);
  prepare_output(options);
  const Data data = load_data(options);

  torch::manual_seed(options.seed);
  Edsr network(options.network);
  if (ronde::rank() == 0) {
    std::printf("EDSR, %s: %lld parameters; %d ranks, batch %lld of %lldx%lld patches\n",
                describe(options.network).c_str(),
                static_cast<long long>(network->parameter_count()), ronde::size(),
                static_cast<long long>(options.batch), static_cast<long long>(options.patch),
                static_cast<long long>(options.patch));
  }
  const auto gain = [&] {
    const Evaluation now = evaluate(network, data.held_out);
    return now.psnr_network - now.psnr_bicubic;
  };
  const TrainingResult training = train(network, data.training, device, options, gain);
  if (training.is_stopped) {
    if (ronde::rank() == 0) {
      std::printf("stopped after step %lld by SIGTERM; --resume goes on\n",
                  static_cast<long long>(training.position.step));
    }
    return 0;
  }
  const Evaluation evaluation = evaluate(network, data.held_out);
  if (ronde::rank() == 0) write_results(network, data.held_out, training, evaluation, options);
  return 0;
}

}  // namespace
}  // namespace edsr

int main(int argc, char** argv) {
  return example::run_program("edsr", argc, argv, [](int count, const char* const* words) {
    const edsr::Options options = edsr::parse_options(count, words);
    if (!options.synthetic) return edsr::run(options);
    example::run_benchmark(edsr::make_workload(options), options.benchmark);
    return 0;
  });
}
