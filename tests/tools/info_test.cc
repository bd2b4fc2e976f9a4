// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "ronde/build_info.h"
#include "ronde/config.h"
#include "tests/support/processes/temporary_folder.h"
#include "tests/tools/ronde_command.h"

namespace {

using Catch::Contains;
using Json = nlohmann::json;
using ronde::test::run_command;

Json info_json(const std::map<std::string, std::string>& environment = {}) {
  const auto result = ended(0, run_command({"info", "--json"}, environment));
  return Json::parse(result.out);
}

/// The item of `list` whose name is `name`.
Json named(const Json& list, const std::string& name) {
  const auto found = std::find_if(list.begin(), list.end(),
                                  [&](const Json& item) { return item.at("name") == name; });
  REQUIRE(found != list.end());
  return *found;
}

TEST_CASE("ronde info works without a launcher and shows every part") {
  const auto result = ended(0, run_command({"info"}));
  CHECK(result.err.empty());
  CHECK_THAT(result.out, Contains("Ronde " + std::string(ronde::build_info::kVersion)));
  for (const char* part :
       {"Built in", "At run time", "Devices", "Backends", "Configuration", "cores for this"}) {
    CHECK_THAT(result.out, Contains(part));
  }
  for (const auto& feature : ronde::build_info::kFeatures) {
    CHECK_THAT(result.out, Contains(std::string(feature.name)));
  }
}

TEST_CASE("ronde info gives each value with its source, and says what was built in") {
  const Json info = info_json({{"RONDE_FUSION_BYTES", "1024KiB"}, {"HOROVOD_CYCLE_TIME", "2.50"}});
  const Json config = info.at("config");
  CHECK(config.size() == ronde::config_table().size());
  CHECK(named(config, "RONDE_FUSION_BYTES").at("value") == "1MiB");
  CHECK(named(config, "RONDE_FUSION_BYTES").at("source") == "RONDE_FUSION_BYTES");
  CHECK(named(config, "RONDE_CYCLE_TIME_MS").at("value") == "2.5");
  CHECK(named(config, "RONDE_CYCLE_TIME_MS").at("source") == "HOROVOD_CYCLE_TIME");
  CHECK(named(config, "RONDE_CACHE_CAPACITY").at("source") == "default");

  const bool mpi = named(info.at("features"), "MPI").at("built_in");
  CHECK(mpi == (RONDE_MPI_IS_LINKED != 0));
  if (mpi) {
    const Json library = named(info.at("libraries"), "MPI");
    CHECK(library.at("found") == true);
    CHECK_FALSE(library.at("version").get<std::string>().empty());
    CHECK(named(info.at("backends"), "mpi").at("device") == "cpu");
  }
  CHECK(named(info.at("features"), "CUDA").at("built_in") == bool{RONDE_KERNELS_ARE_BUILT});
  CHECK(info.at("devices").at(0).at("kind") == "cpu");
  CHECK(info.at("devices").at(0).at("usable_cores") >= 1);
}

TEST_CASE(
    "ronde info shows an error of the environment and fails, and warns of unknown variables") {
  const std::map<std::string, std::string> nonsense = {{"RONDE_CYCLE_TIME_MS", "fast"}};
  const auto text = ended(1, run_command({"info"}, nonsense));
  CHECK_THAT(text.err, Contains("RONDE_CYCLE_TIME_MS: \"fast\""));
  CHECK_THAT(text.out, Contains("Built in") && Contains("RONDE_CYCLE_TIME_MS: \"fast\""));
  const auto json = ended(1, run_command({"info", "--json"}, nonsense));
  CHECK_THAT(Json::parse(json.out).at("error").get<std::string>(), Contains("\"fast\""));
  const auto warned = ended(0, run_command({"info"}, {{"RONDE_FUSION_BYTE", "1"}}));
  CHECK_THAT(warned.out, Contains("warning: RONDE_FUSION_BYTE is not a variable") &&
                             Contains("did you mean RONDE_FUSION_BYTES?"));
}

#ifdef RONDE_CUDA_STUB
TEST_CASE(
    "ronde info with the toolkit's stub of the cuda driver, and the real nccl, says why not") {
  const ronde::test::TemporaryFolder folder;
  std::filesystem::create_symlink(RONDE_CUDA_STUB, folder / "libcuda.so.1");
  std::filesystem::create_symlink(RONDE_NCCL_LIBRARY, folder / "libnccl.so.2");
  const std::map<std::string, std::string> loaded = {{"LD_LIBRARY_PATH", folder.path().string()}};
  const Json info = info_json(loaded);
  const Json driver = named(info.at("libraries"), "CUDA driver");
  CHECK(driver.at("found") == true);
  CHECK(driver.at("version") == "");
  const std::string reason =
      "cuDriverGetVersion: libcuda.so.1 is the CUDA Toolkit's stub, for linking only.";
  CHECK_THAT(driver.at("remark").get<std::string>(), Contains(reason) && Contains("(34)"));
  // NCCL has all functions that Ronde calls, or the remark would name those that it lacks.
  const Json nccl = named(info.at("libraries"), "NCCL");
  CHECK(nccl.at("found") == true);
  CHECK_THAT(nccl.at("version").get<std::string>(), Catch::Matches("2\\.[0-9]+\\.[0-9]+"));
  CHECK(nccl.at("remark") == "");
  CHECK(info.at("devices").size() == 1);

  // The same holds for the driver, whose functions the backends look up first.
  for (const char* const backend : {"cuda", "nccl"}) {
    auto environment = loaded;
    environment["RONDE_GPU_BACKEND"] = backend;
    const auto refused = run_command({"bench", "allreduce", "--max", "4"}, environment);
    CHECK(refused.exit_code == 2);
    CHECK_THAT(refused.err, Contains(backend) && Contains(reason));
  }
}
#endif

TEST_CASE("the command refuses what it does not know, with help") {
  CHECK(run_command({}).exit_code != 0);
  CHECK(run_command({"inform"}).exit_code != 0);
  CHECK(run_command({"info", "--yaml"}).exit_code != 0);
  CHECK(run_command({"info", "--json", "--markdown"}).exit_code != 0);
  CHECK_THAT(run_command({"--help"}).out, Contains("info"));
  CHECK_THAT(run_command({"--version"}).out, Contains(std::string(ronde::build_info::kVersion)));
}

}  // namespace
