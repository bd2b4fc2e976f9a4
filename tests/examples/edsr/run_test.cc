// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>

#include "images.h"
#include "tests/examples/edsr/run.h"
#include "tests/support/processes/beside.h"

namespace edsr::testing {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using namespace ronde::test;

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

/// Fails the test unless two runs end with the same losses and the same network, bit for bit.
void check_same_end(const Workspace& here, const std::string& a, const std::string& b) {
  const auto table = [&](const std::string& name) {
    return nlohmann::json::parse(read_text(here / "tables" / (name + ".json")));
  };
  CHECK(table(a)["loss_first"] == table(b)["loss_first"]);
  CHECK(table(a)["loss_last"] == table(b)["loss_last"]);
  CHECK(read_checkpoint(here / a).network == read_checkpoint(here / b).network);
}

/// Starts the program as a single rank without a launcher, and sends it the signal once it has a
/// checkpoint. Returns its status.
int signal_once_it_has_saved(int number, const fs::path& output_folder, const Words& options) {
  // The shell prints its process and becomes the program.
  std::string command = std::string("echo $$; OMP_NUM_THREADS=1 exec ") + TEST_PROGRAM;
  for (const std::string& word : options) command += " '" + word + "'";
  std::FILE* const output = ::popen(command.c_str(), "r");
  REQUIRE(output != nullptr);
  pid_t process = 0;
  REQUIRE(std::fscanf(output, "%d", &process) == 1);
  for (int i = 0; i < 6000 && checkpoints_in(output_folder).empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::kill(process, number);
  std::array<char, 4096> line;
  while (std::fgets(line.data(), line.size(), output) != nullptr) {
  }
  const int status = ::pclose(output);
  REQUIRE_FALSE(checkpoints_in(output_folder).empty());
  return status;
}

}  // namespace

TEST_CASE("ranks and workers do not change the losses of the same total batch, bf16 little") {
  const Workspace here;
  const double one = here.train(1, "one", "--steps 30")["loss_last"];
  struct Case {
    int ranks;
    const char* options;
    double least, most;  // of what losses, which are near 0.1, differ by
  };
  // Ranks differ by the order in which f32 gradients are summed; bf16 has 8 bits.
  for (const auto& [ranks, options, least, most] :
       {Case{2, "--steps 30 --workers 0", 0, 1e-5}, Case{4, "--steps 30 --workers 3", 0, 1e-5},
        Case{2, "--steps 30 --amp", 1e-7, 1e-2}, Case{1, "--steps 30 --seed 2", 1e-5, 1}}) {
    const nlohmann::json other = here.train(ranks, "other", options);
    INFO(ranks << " ranks, " << options);
    CHECK(other["loss_last"] < other["loss_first"]);
    const double difference = std::abs(other["loss_last"].get<double>() - one);
    CHECK(difference >= least);
    CHECK(difference < most);
  }
}

TEST_CASE("two ranks train, evaluate and leave table, picture and checkpoint") {
  const Workspace here;
  const fs::path table = here / "made" / "t.json";
  const std::string text =
      launch_well(2, here.options("out", "--steps 40 --json " + table.string()));
  const auto json = nlohmann::json::parse(read_text(table));
  CHECK(json.size() == 9);
  CHECK(json["ranks"] == 2);
  CHECK(json["steps"] == 40);
  CHECK(json["parameters_identical"] == true);
  CHECK(json["loss_last"] < json["loss_first"]);
  const double per_rank = json["images_per_s_per_rank"];
  CHECK(per_rank > 0);
  CHECK(json["images_per_s_total"].get<double>() == Approx(2 * per_rank));
  const double bicubic = json["psnr_bicubic"];
  CHECK(bicubic > 15);
  CHECK(bicubic < 60);
  CHECK(json["psnr_network"].get<double>() > 8);

  CHECK_THAT(text, Contains("6 photographs to train on, 2 held out") && Contains("step 1: loss ") &&
                       Contains("waiting for gradients") &&
                       Contains("2 ranks hold the same network after 40 steps"));
  CHECK(read_image(here / "out" / "comparison.png").size(2) == 4 * (384 + 6));
  CHECK(read_checkpoint(here / "out").step == 40);
  CHECK_FALSE(read_checkpoint(here / "out").network.empty());
}

TEST_CASE("the evaluation does not depend on the number of ranks") {
  const Workspace here;
  const auto evaluate = [&](int ranks) {
    // A rate too small to change any 8-bit result: only the evaluation is compared.
    return here.train(ranks, "out", "--held-out 3 --steps 1 --lr 1e-12");
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
  const double whole = here.train(1, "whole", rate + "--steps 30")["loss_last"];
  // An epoch has 24 steps: the first stop is inside it, the second at its end.
  here.train(1, "parts", rate + "--steps 10");
  here.train(1, "parts", rate + "--steps 24 --resume");
  here.train(1, "parts", rate + "--steps 30 --resume");
  check_same_end(here, "parts", "whole");

  // On other numbers of ranks, sums are rounded otherwise.
  here.train(2, "ranks", rate + "--steps 11");
  const double resumed = here.train(4, "ranks", rate + "--steps 30 --resume")["loss_last"];
  CHECK(resumed == Approx(whole).epsilon(0).margin(1e-5));
}

TEST_CASE("a run that was killed, or told to end, goes on from its last checkpoint") {
  const Workspace here;
  const int number = GENERATE(SIGKILL, SIGTERM);
  const std::string rate = "--lr-halve-every 9 --steps ";
  const int status = signal_once_it_has_saved(
      number, here / "out", here.options("out", rate + "1000000 --checkpoint-every 7"));
  CHECK(status == (number == SIGKILL ? SIGKILL : 0));
  const std::int64_t step = read_checkpoint(here / "out").step;
  if (number == SIGKILL) CHECK(step % 7 == 0);
  CHECK(step < 1000000);
  here.train(1, "out", rate + std::to_string(step + 10) + " --resume");
  here.train(1, "whole", rate + std::to_string(step + 10));
  check_same_end(here, "out", "whole");
}

TEST_CASE("a budget of minutes stops all ranks at the same step; help trains nothing") {
  const Workspace here;
  const nlohmann::json json = here.train(2, "out", "--minutes 0.05");
  CHECK(json["parameters_identical"] == true);
  CHECK(json["steps"] > 0);
  CHECK_THAT(launch_well(1, {"--help"}), Contains("--data") && Contains("--resume"));
}

TEST_CASE("training ends at the gain that was wanted, on all ranks, or else with its budget") {
  const Workspace here;
  // Worse than any network: the first evaluation ends it.
  CHECK(here.train(2, "out", "--steps 60 --until-gain -1000")["steps"] < 60);
  CHECK(here.train(2, "out", "--steps 60 --until-gain 1000")["steps"] == 60);
}

TEST_CASE("two ranks measure their scaling efficiency without photographs") {
  CHECK_THAT(launch_well(2, split("--efficiency --blocks 1 --features 4 --patch 8 --batch-size 1 "
                                  "--num-iters 2 --num-batches-per-iter 2 --num-warmup-batches 1")),
             Contains("Model: edsr-1x4") && Contains("Batch size: 1") &&
                 Contains("Scaling efficiency on 2 CPU(s): "));
}

// Mistakes of a user end every rank, with a text that names what, where and which rank.

TEST_CASE("what cannot be read, written or shared out ends every rank, and is named") {
  struct Case {
    int ranks;
    Words options;
    Words texts;
  };
  const Workspace here;
  write_bytes(here / "file", "");
  const std::string file = here / "file";
  const std::string folder = here.path();
  for (const Case& one : {
           Case{2, here.options("out", "--steps 5", "none"), {"no such file or folder", "none"}},
           Case{2, here.options("file/out", "--steps 5"), {"edsr: folder", "file/out", "--output"}},
           Case{1, here.options("out", "--steps 5 --json " + file + "/t.json"), {"--json"}},
           Case{1, here.options("out", "--steps 5 --json " + folder), {"--json", "is a folder"}},
           Case{3, here.options("out", "--steps 5"), {"--batch 8", "multiple of 3"}},
       }) {
    const std::string output = launch_badly(one.ranks, one.options);
    for (const std::string& text : one.texts) CHECK_THAT(output, Contains(text));
    CHECK_THAT(output, !Contains("photographs to train on"));
  }
}

TEST_CASE("what is wrong on one rank alone ends both, and that rank is named") {
  const Workspace here;
  const Words right = here.options("out", "--steps 5");

  make_photographs(here / "corrupt", 8);
  cut_file(here / "corrupt" / "f.png", 50);
  CHECK_THAT(launch_pair_badly(right, here.options("out", "--steps 5", "corrupt")),
             Contains("edsr: image") && Contains("corrupt/f.png") &&
                 Contains("edsr: rank 1 aborted: image"));

  make_photographs(here / "fewer", 7);
  CHECK_THAT(launch_pair_badly(right, here.options("out", "--steps 5", "fewer")),
             Contains("photographs of the ranks differ") && Contains("rank 1"));

  CHECK_THAT(launch_pair_badly(right, here.options("out", "--steps 5 --no-such-option")),
             Contains("--no-such-option") && Contains("edsr: rank 1 called shutdown()"));
}

TEST_CASE("a checkpoint that cannot be resumed from is refused and left as it is") {
  const Workspace here;
  const nlohmann::json trained = here.train(1, "out", "--steps 5 --resume");  // from none
  CHECK_THAT(launch_badly(1, here.options("out", "--steps 10 --seed 3 --resume")),
             Contains("was written by a different run") && Contains("\"seed\":1} there"));
  // Training is over: a run that was killed during its evaluation starts so.
  const nlohmann::json evaluated = here.train(1, "out", "--steps 5 --resume");
  for (const char* key : {"steps", "loss_first", "loss_last", "psnr_network"}) {
    CHECK(evaluated[key] == trained[key]);
  }
  CHECK_THAT(launch_well(1, here.options("out", "--steps 5 --resume")),
             Contains("nothing left to train") && Contains("raise --steps"));

  CHECK_THAT(launch_badly(1, here.options("out", "--steps 9 --resume --blocks 2")),
             Contains("of another program or model") && Contains("network/"));

  const fs::path folder = here / "out" / "checkpoint";
  for (const auto& file : fs::recursive_directory_iterator(folder)) {
    if (file.path().extension() == ".pt") cut_file(file.path(), 50);
  }
  CHECK_THAT(launch_badly(2, here.options("out", "--steps 10 --resume")),
             Contains("no checkpoint in " + folder.string()) && Contains("it is a part of a file"));
}

TEST_CASE("a diverging run ends with the way out, a wrong option is explained once, by rank 0") {
  const Workspace here;
  CHECK_THAT(launch_badly(2, here.options("out", "--steps 60 --lr 1e30")),
             Contains("diverged") && Contains("lower --lr"));
  check_refused_once(2, {"--data", "x", "--scale", "7"}, "edsr: --scale");
}

TEST_CASE("a run with --device cuda opens libtorch_cuda before it asks LibTorch for a GPU") {
  const Workspace here;
  // That of tests/torch/late, which has a GPU, and no GPU for Ronde: the program gets as far as
  // that if it opens the library before any call of LibTorch that asks for CUDA.
  std::string folders = LATE_CUDA_FOLDER;
  if (const char* const others = std::getenv("LD_LIBRARY_PATH")) folders.append(":").append(others);
  const std::map<std::string, std::string> late_cuda = {{"LD_LIBRARY_PATH", folders},
                                                        {"CUDA_VISIBLE_DEVICES", ""}};
  for (const Words& options : {here.options("out", "--steps 5 --device cuda"),
                               split("--efficiency --device cuda --blocks 1 --features 4")}) {
    CHECK_THAT(launch_badly(1, options, late_cuda),
               Contains("--device cuda: Ronde has no backend for GPUs here"));
  }
}

}  // namespace edsr::testing
