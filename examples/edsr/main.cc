// SPDX-License-Identifier: Apache-2.0
// Trains EDSR on a folder of photographs, on one rank or, started by mpiexec, on many. Or measures
// how fast it trains.
#include <ronde/torch.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/benchmark/benchmark.h"
#include "common/checksum.h"
#include "common/data/files.h"
#include "common/device.h"
#include "common/errors.h"
#include "common/program.h"
#include "evaluation/comparison.h"
#include "evaluation/evaluation.h"
#include "evaluation/report.h"
#include "images/image_io.h"
#include "training/group.h"
#include "training/synthetic.h"
#include "training/train.h"

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

/// One line for each reason, with an example.
void show_skipped(const std::vector<SkippedFile>& skipped) {
  std::map<std::string, std::vector<std::filesystem::path>> by_reason;
  for (const SkippedFile& file : skipped) by_reason[file.reason].push_back(file.path);
  for (const auto& [reason, paths] : by_reason) {
    std::printf("skipped %zu (%s): %s%s\n", paths.size(), reason.c_str(), paths.front().c_str(),
                paths.size() > 1 ? ", ..." : "");
  }
}

void show_data(const Data& data, const ScanResult& scan) {
  if (ronde::rank() != 0) return;
  std::int64_t bytes = 0;
  for (const Photograph& photograph : *data.training) {
    bytes += static_cast<std::int64_t>(photograph.high.nbytes() + photograph.low.nbytes());
  }
  show_skipped(scan.skipped);
  std::printf("%zu photographs to train on (%lld MiB in memory), %zu held out:\n",
              data.training->size(), static_cast<long long>(bytes >> 20), data.held_out.size());
  for (const Photograph& photograph : data.held_out) {
    std::printf("  %s, %lldx%lld\n", photograph.name.c_str(),
                static_cast<long long>(photograph.high.size(2)),
                static_cast<long long>(photograph.high.size(1)));
  }
}

Data load_data(const Options& options) {
  const ScanResult scan = scan_photographs(options.data, options.min_side);
  Split split;
  if (options.validation.empty()) {
    split = split_photographs(scan.files, options.held_out);
  } else {
    split = {scan.files, scan_photographs(options.validation, options.min_side).files};
  }
  if (split.training.empty() || split.held_out.empty()) {
    throw example::InputError("no photographs found to " +
                              std::string(split.training.empty() ? "train on; --data"
                                                                 : "evaluate on; "
                                                                   "--validation") +
                              " needs JPEG or PNG files of at least --min-side pixels a side");
  }
  const std::int64_t scale = options.network.scale;
  const std::size_t threads = std::max<std::size_t>(1, options.workers);
  const auto load = [&](const auto& files) {
    return load_photographs(files, options.max_side, scale, options.patch * scale, threads);
  };
  Data data{std::make_shared<const std::vector<Photograph>>(load(split.training)),
            load(split.held_out)};
  require_same_photographs(*data.training, data.held_out);
  show_data(data, scan);
  return data;
}

void write_results(Edsr& network, const Data& data, const Report& report, const Options& options) {
  if (ronde::rank() != 0) return;
  const std::filesystem::path picture = options.output / "comparison.png";
  write_png(picture, compare_side_by_side(network, data.held_out, report.evaluation));
  if (!options.json.empty()) example::write_text(options.json, to_json(report));
  std::printf("\n%s\npicture     %s\ncheckpoint  %s\nloss curve  %s\n", to_table(report).c_str(),
              picture.c_str(), checkpoint_folder(options).c_str(),
              (options.output / kLossCurveName).c_str());
}

void prepare_output(const Options& options) {
  if (ronde::rank() != 0) return;
  example::prepare_folder(options.output, "--output");
  if (!options.json.empty()) example::prepare_file(options.json, "--json");
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
      std::printf("stopped after step %lld, as SIGTERM has come; --resume goes on\n",
                  static_cast<long long>(training.position.step));
    }
    return 0;
  }

  Report report;
  report.ranks = ronde::size();
  report.steps = training.position.step;
  report.images_per_s_total =
      static_cast<double>(training.images) / std::max(training.seconds, 1e-9);
  report.images_per_s_per_rank = report.images_per_s_total / ronde::size();
  report.loss_first = training.position.loss_first;
  report.loss_last = training.position.loss_last;
  report.parameters_identical = example::parameters_identical(*network);
  report.evaluation = evaluate(network, data.held_out);
  write_results(network, data, report, options);
  return report.parameters_identical ? 0 : 1;
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
