// SPDX-License-Identifier: Apache-2.0
// The program as a user runs it, on images made for the test.
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "images/image_io.h"
#include "tests/examples/edsr/run.h"
#include "tests/support/processes/beside.h"

namespace edsr::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using ronde::test::launch_well;

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  return (torch::tensor(a) - torch::tensor(b)).abs().max().item<double>();
}

nlohmann::json read_json(const fs::path& path) {
  return nlohmann::json::parse(read_text(path));
}

struct Checkpoint {
  std::string network;  ///< its bytes
  std::int64_t step = 0;
};

/// The folders of complete checkpoints that a run has left, the newest last.
std::vector<fs::path> checkpoints_in(const fs::path& output) {
  std::vector<fs::path> all;
  if (!fs::exists(output / "checkpoint")) return all;
  for (const auto& folder : fs::directory_iterator(output / "checkpoint")) {
    const std::string name = folder.path().filename().string();
    if (!name.starts_with("partial-")) all.push_back(folder.path());
  }
  std::sort(all.begin(), all.end());
  return all;
}

/// The newest one, as LibTorch reads it.
Checkpoint read_checkpoint(const fs::path& output) {
  const fs::path folder = checkpoints_in(output).back();
  const std::string name = folder.filename().string();
  std::map<std::string, std::string> tensors;
  for (const auto& file : fs::directory_iterator(folder)) {
    if (file.path().extension() != ".pt") continue;
    const std::string bytes = read_text(file.path());
    for (const auto& entry : torch::pickle_load({bytes.begin(), bytes.end()}).toGenericDict()) {
      const std::string key = entry.key().toStringRef();
      const torch::Tensor tensor = entry.value().toTensor();
      if (!key.starts_with("network/")) continue;
      tensors[key].assign(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
    }
  }
  Checkpoint read;
  read.step = std::stoll(name.substr(name.find("-step-") + 6));
  for (const auto& [key, bytes] : tensors) read.network += key + bytes;
  return read;
}

/// The two runs have the same losses and end with the same network, bit for bit.
void check_same_end(const fs::path& a, const fs::path& b) {
  CHECK(read_text(a / "loss.csv") == read_text(b / "loss.csv"));
  CHECK(read_checkpoint(a).network == read_checkpoint(b).network);
}

/// Starts the program as a single rank without a launcher, and sends it the signal once it has a
/// checkpoint. Returns its status.
int signal_once_it_has_saved(int number, const fs::path& output_folder, const Words& options) {
  // The shell prints its process and becomes the program, which prints a line about each second.
  std::string command =
      std::string("echo $$; OMP_NUM_THREADS=1 exec ") + TEST_PROGRAM + " --progress-seconds 0";
  for (const std::string& word : options) command += " '" + word + "'";
  std::FILE* const output = ::popen(command.c_str(), "r");
  REQUIRE(output != nullptr);
  pid_t process = 0;
  REQUIRE(std::fscanf(output, "%d", &process) == 1);
  std::array<char, 4096> line;
  while (checkpoints_in(output_folder).empty() &&
         std::fgets(line.data(), line.size(), output) != nullptr) {
  }
  ::kill(process, number);
  while (std::fgets(line.data(), line.size(), output) != nullptr) {
  }
  const int status = ::pclose(output);
  REQUIRE_FALSE(checkpoints_in(output_folder).empty());
  return status;
}

}  // namespace

TEST_CASE("ranks and workers do not change the loss curve of the same total batch, bf16 little") {
  const Workspace here;
  here.train(1, "one", "--steps 30");
  const std::vector<double> one = here.losses("one");
  REQUIRE(one.size() == 30);
  CHECK(one.back() < one.front());
  struct Case {
    int ranks;
    const char* options;
    double least, most;  // of what losses, which are near 0.1, differ by
  };
  // Ranks differ by the order in which f32 gradients are summed; bf16 has 8 bits.
  for (const auto& [ranks, options, least, most] :
       {Case{2, "--steps 30 --workers 0", 0, 1e-5}, Case{4, "--steps 30 --workers 3", 0, 1e-5},
        Case{2, "--steps 30 --amp", 1e-5, 1e-2}, Case{1, "--steps 30 --seed 2", 1e-3, 1}}) {
    here.train(ranks, "other", options);
    const std::vector<double> other = here.losses("other");
    INFO(ranks << " ranks, " << options);
    CHECK(other.back() < other.front());
    CHECK(largest_difference(one, other) >= least);
    CHECK(largest_difference(one, other) < most);
  }
}

TEST_CASE("two ranks train, evaluate and leave table, picture, checkpoint and loss curve") {
  const Workspace here;
  const fs::path table = here / "tables" / "t.json";
  const std::string text = here.train(2, "out", "--steps 40 --json " + table.string());

  const nlohmann::json json = read_json(table);
  CHECK(json["ranks"] == 2);
  CHECK(json["steps"] == 40);
  CHECK(json["parameters_identical"] == true);
  const std::vector<double> losses = here.losses("out");
  REQUIRE(losses.size() == 40);
  CHECK(json["loss_first"] == losses.front());
  CHECK(json["loss_last"] == losses.back());
  CHECK(losses.back() < losses.front());
  const double per_rank = json["images_per_s_per_rank"];
  CHECK(per_rank > 0);
  CHECK(json["images_per_s_total"].get<double>() == Approx(2 * per_rank));
  const double bicubic = json["psnr_bicubic"];
  CHECK(bicubic > 15);
  CHECK(bicubic < 60);
  CHECK(json["psnr_network"].get<double>() > 8);

  std::istringstream scalars(read_text(here / "out" / "scalars.csv"));
  std::string line, last;
  std::getline(scalars, line);
  CHECK(line == "step,loss,step_ms,exposed_ms,images_per_s");
  while (std::getline(scalars, line)) last = line;
  std::array<double, 5> values{};
  char comma = 0;
  std::istringstream words(last);
  for (double& value : values) words >> value >> comma;
  const auto [step, loss, step_ms, exposed_ms, images_per_s] = values;
  CHECK(step == 40);
  CHECK(loss == Approx(losses.back()).epsilon(1e-4));
  CHECK(step_ms > 0);
  CHECK(exposed_ms > 0);
  CHECK(exposed_ms < step_ms);
  CHECK(images_per_s > 0);

  CHECK_THAT(text, Contains("6 photographs to train on") && Contains("2 held out") &&
                       Contains("parameters identical on all ranks     yes") &&
                       Contains("images/s"));
  CHECK(read_image(here / "out" / "comparison.png").size(2) == 4 * (384 + 6) + 6);
  CHECK(read_checkpoint(here / "out").step == 40);
  CHECK_FALSE(read_checkpoint(here / "out").network.empty());
}

TEST_CASE("the evaluation does not depend on the number of ranks") {
  const Workspace here;
  const fs::path table = here / "t.json";
  const auto evaluate = [&](int ranks) {
    // A rate too small to change any 8-bit result: only the evaluation is compared.
    here.train(ranks, "out", "--held-out 3 --steps 1 --lr 1e-12 --json " + table.string());
    return read_json(table);
  };
  const nlohmann::json one = evaluate(1);
  for (const int ranks : {2, 4}) {
    const nlohmann::json many = evaluate(ranks);
    CHECK(many["psnr_bicubic"] == one["psnr_bicubic"]);
    CHECK(many["psnr_network"].get<double>() == Approx(one["psnr_network"].get<double>()));
  }
}

TEST_CASE("a resumed run ends bit for bit where an uninterrupted one does") {
  const Workspace here;
  const std::string rate = "--lr-halve-every 9 ";
  here.train(1, "whole", rate + "--steps 30");
  // An epoch has 24 steps: the first stop is inside it, the second at its end.
  here.train(1, "parts", rate + "--steps 10");
  here.train(1, "parts", rate + "--steps 24 --resume");
  here.train(1, "parts", rate + "--steps 30 --resume");
  check_same_end(here / "parts", here / "whole");

  // On other numbers of ranks, sums are rounded otherwise.
  here.train(2, "ranks", rate + "--steps 11");
  here.train(4, "ranks", rate + "--steps 30 --resume");
  CHECK(largest_difference(here.losses("ranks"), here.losses("whole")) < 1e-5);
}

TEST_CASE("a run that was killed, or told to end, goes on from its last checkpoint") {
  const Workspace here;
  const int number = GENERATE(SIGKILL, SIGTERM);
  const std::string rate = "--lr-halve-every 9 --steps ";
  const int status = signal_once_it_has_saved(
      number, here / "out", here.options("out", rate + "1000000 --checkpoint-every 7"));
  CHECK(status == (number == SIGKILL ? SIGKILL : 0));
  const std::int64_t step = read_checkpoint(here / "out").step;
  const auto losses = static_cast<std::int64_t>(here.losses("out").size());
  CHECK((number == SIGKILL ? step % 7 == 0 : step == losses));
  CHECK(step < 1000000);
  here.train(1, "out", rate + std::to_string(step + 10) + " --resume");
  here.train(1, "whole", rate + std::to_string(step + 10));
  check_same_end(here / "out", here / "whole");
}

TEST_CASE("losses of steps after the checkpoint are replaced when the run goes on") {
  const Workspace here;
  const std::string rate = "--lr-halve-every 9 --steps ";
  here.train(1, "out", rate + "17 --checkpoint-every 7");
  // As if it had ended at step 17 without writing its checkpoint, but with all losses.
  here.train(1, "early", rate + "14");
  fs::remove_all(here / "out" / "checkpoint");
  fs::rename(here / "early" / "checkpoint", here / "out" / "checkpoint");
  here.train(1, "out", rate + "20 --checkpoint-every 7 --resume");
  here.train(1, "whole", rate + "20");
  check_same_end(here / "out", here / "whole");
}

TEST_CASE("a budget of minutes stops all ranks at the same step; help trains nothing") {
  const Workspace here;
  const fs::path table = here / "t.json";
  here.train(2, "out", "--minutes 0.05 --json " + table.string());
  const nlohmann::json json = read_json(table);
  CHECK(json["parameters_identical"] == true);
  CHECK(json["steps"].get<std::size_t>() == here.losses("out").size());
  CHECK(json["steps"] > 0);
  CHECK_THAT(launch_well(1, {"--help"}), Contains("--data") && Contains("--resume"));
}

TEST_CASE("training ends at the gain that was wanted, on all ranks, or else with its budget") {
  const Workspace here;
  const auto steps_until = [&](const std::string& gain) {
    const fs::path table = here / "gain.json";
    here.train(2, "out", "--steps 60 --until-gain " + gain + " --json " + table.string());
    const nlohmann::json json = read_json(table);
    CHECK(json["parameters_identical"] == true);
    return json["steps"].get<int>();
  };
  CHECK(steps_until("-1000") < 60);  // worse than any network: the first look ends it
  CHECK(steps_until("1000") == 60);
}

TEST_CASE("two ranks measure their scaling efficiency without photographs") {
  const TemporaryFolder folder;
  const std::string file = (folder / "e.json").string();
  const std::string text = launch_well(
      2, split("--efficiency --blocks 1 --features 4 --patch 8 --batch-size 1 --num-iters 2 "
               "--num-batches-per-iter 2 --num-warmup-batches 1 --json " +
               file));
  CHECK_THAT(text, Contains("Model: edsr-1x4") && Contains("Batch size: 1") &&
                       Contains("Scaling efficiency on 2 CPU(s): "));
  const nlohmann::json json = read_json(file);
  CHECK(json["model"] == "edsr-1x4");
  CHECK(json["ranks"] == 2);
  CHECK(json["efficiency"].get<double>() > 0);
}

}  // namespace edsr::testing
