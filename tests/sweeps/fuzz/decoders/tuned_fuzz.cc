// SPDX-License-Identifier: Apache-2.0
// The file of RONDE_TUNED, which RONDE_AUTOTUNE and ronde tune write and a user may edit.
#include "api/src/tuned_file.h"
#include "ronde/algorithms.h"
#include "ronde/error.h"
#include "tests/support/processes/temporary_folder.h"
#include "tests/sweeps/fuzz/decoders/fuzz_target.h"

namespace ronde::fuzz {
namespace {

const std::string& file() {
  static const test::TemporaryFolder folder;
  static const std::string path = folder / "tuned.json";
  return path;
}

std::string written(const TunedSettings& settings) {
  require(write_tuned(file(), settings).empty(), "the file can be written");
  return test::read_text(file());
}

}  // namespace

std::vector<std::string> valid_inputs() {
  TunedSettings settings;
  settings.finished = true;
  settings.model = "0123456789abcdef";
  settings.ranks = 4;
  settings.hosts = 2;
  settings.step_s = 0.125;
  settings.values = {{"RONDE_FUSION_BYTES", "67108864"},
                     {"RONDE_ALGORITHMS", "allreduce/4:ring@1MiB,broadcast:chain"}};
  return {written(settings), written({})};
}

bool take(std::string_view bytes) {
  test::write_bytes(file(), std::string(bytes));
  std::string problem;
  const std::optional<TunedSettings> settings = read_tuned(file(), problem);
  require(settings.has_value() == problem.empty(), "a file is of use, or it is said why not");
  if (!settings) return false;
  const std::string once = written(*settings);
  const std::optional<TunedSettings> again = read_tuned(file(), problem);
  require(again && written(*again) == once, "settings are written so that they are read as equal");
  return true;
}

}  // namespace ronde::fuzz
