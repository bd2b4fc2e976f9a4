// SPDX-License-Identifier: Apache-2.0
// The JSON files of a checkpoint, and the choice of a checkpoint.
#include <catch2/catch.hpp>
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/parts.h"
#include "torch_ext/src/store/manifest.h"

namespace {

using namespace ronde::store;
using Catch::Contains;
using ronde::test::make_checkpoint;

template <typename E = FormatError>
std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  FAIL("nothing was thrown");
  return {};
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

/// A manifest that says something else, with the checksum of that.
std::string forged(const Manifest& manifest, const std::string& from, const std::string& to) {
  auto json = nlohmann::json::parse(replaced(encode_manifest(manifest), from, to));
  json["checksum"] = checksum_text(json["content"].dump());
  return json.dump();
}

/// Returns the sighting of a checkpoint with these parts.
Sighting seen(const Manifest& manifest, std::vector<std::int64_t> parts, bool committed = true) {
  return {.name = manifest.name,
          .committed = committed,
          .manifest = committed ? encode_manifest(manifest) : "",
          .parts = std::move(parts)};
}

TEST_CASE("a manifest, an index and sightings are read as they were written") {
  const auto made = make_checkpoint(7, 120, 3);
  const std::string text = encode_manifest(made.manifest);
  const Manifest read = decode_manifest(text);
  CHECK(read.name == made.manifest.name);
  CHECK(encode_manifest(read) == text);
  const Entry entry{.name = "net/conv.weight",
                    .type = "a type",
                    .dtype = "Float",
                    .shape = {2, 0, 3},
                    .rank = 1,
                    .offset = 64,
                    .bytes = 24,
                    .checksum = "0123456789abcdef"};
  const std::string index = encode_index({entry, Entry{.name = "y", .checksum = entry.checksum}});
  CHECK(encode_index(decode_index(index, 88)) == index);
  const std::string sightings = encode_sightings({seen(made.manifest, {0, 2})});
  CHECK(encode_sightings(decode_sightings(sightings)) == sightings);
}

TEST_CASE("the name of a folder tells sequence, step and run") {
  const Name name{7, 120, "3fa91c02"};
  CHECK(folder_name(name) == "000007-step-120-3fa91c02");
  Name read;
  for (const Name& each : {name, Name{1234567, 0, "00000000"}}) {
    REQUIRE(parse_folder_name(folder_name(each), read));
    CHECK(read == each);
  }
  for (const char* text :
       {"", "step", "000007-step-120", "7-step-120-3fa91c02", "000007-step--3fa91c02",
        "000007-step-1x-3fa91c02", "000007-step-120-3FA91C02",
        "000007-step-99999999999999999999-3fa91c02", "lost+found"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_folder_name(text, read));
  }
}

TEST_CASE("what is no manifest of a known version is refused with the reason") {
  const Manifest manifest = make_checkpoint(7, 120, 3).manifest;
  const auto check = [](const std::string& text, const std::string& words) {
    CHECK_THAT(refusal([&] { decode_manifest(text); }), Contains(words));
  };
  check("", "no JSON text");
  check(encode_manifest(manifest).substr(0, 100), "only a part of one");
  check("[]", "an object is expected");
  check("{}", "there is no \"content\"");
  check(std::string(100, '[') + std::string(100, ']'), "nested deeper");
  check(forged(manifest, "ronde checkpoint", "another"), "another format");
  check(forged(manifest, "\"step\": 120", "\"step\": -1"), "\"step\" is no whole number from 0");
  check(forged(manifest, "\"step\": 120", "\"step\": 1.5"), "\"step\" is no whole number");
  check(forged(manifest, "\"step\": 120", "\"step\": true"), "\"step\" is no whole number");
  check(forged(manifest, "\"step\"", "\"stop\""), "there is no \"step\"");
  check(forged(manifest, "0123abcd", "0123ABCD"), "eight hexadecimal digits");
  check(forged(manifest, "\"part\": 1", "\"part\": 0"), "\"part\" is no whole number from 1 to 2");
  check(forged(manifest, "\"version\": 2", "\"version\": 1"),
        "\"version\" is no whole number from 2");
  check(replaced(encode_manifest(manifest), "\"step\": 120", "\"step\": 121"), "checksum is wrong");
  Manifest newer = manifest;
  newer.version = 3;
  CHECK_THAT(refusal<NewerVersion>([&] { decode_manifest(encode_manifest(newer)); }),
             Contains("version 3 of the format, and this Ronde reads 2") &&
                 Contains("Resume with the Ronde that wrote it"));
}

TEST_CASE("an index that reaches behind its file, or has a name twice, is refused") {
  const Entry entry{
      .name = "x", .shape = {}, .offset = 60, .bytes = 41, .checksum = "0123456789abcdef"};
  const std::vector<Entry> once = {entry}, twice = {entry, entry};
  CHECK_THAT(refusal([&] { decode_index(encode_index(once), 100); }),
             Contains("entry \"x\" ends behind the file's 100 bytes"));
  CHECK_THAT(refusal([&] { decode_index(encode_index(twice), 200); }),
             Contains("two entries \"x\""));
}

TEST_CASE("no changed byte of a manifest goes unnoticed") {
  const std::string text = encode_manifest(make_checkpoint(7, 120, 3).manifest);
  std::size_t refused = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (const int flip : {1, 16, 127}) {
      std::string changed = text;
      changed[at] = static_cast<char>(changed[at] ^ flip);
      CAPTURE(at, changed);
      std::string read = text;  // space between the values does not count
      try {
        read = encode_manifest(decode_manifest(changed));
      } catch (const FormatError&) {
        ++refused;
      }
      CHECK(read == text);
    }
  }
  CHECK(refused > text.size());
}

TEST_CASE("the ranks choose the newest checkpoint that they have together") {
  const Manifest older = make_checkpoint(6, 110, 2).manifest;
  const Manifest newer = make_checkpoint(7, 120, 2).manifest;
  const auto problem_of = [](const std::vector<std::vector<Sighting>>& all,
                             const std::vector<int>& host_of) {
    const auto candidates = find_candidates(all, host_of);
    REQUIRE(candidates.size() == 2);
    CHECK(candidates[0].name.step == 120);
    CHECK(candidates[1].name.step == 110);
    CHECK(candidates[1].problem.empty());
    return candidates[0].problem;
  };
  const Sighting whole = seen(older, {0, 1});
  // On the disks of two hosts.
  CHECK(problem_of({{whole, seen(newer, {0})}, {seen(newer, {1})}}, {0, 1}).empty());
  CHECK_THAT(problem_of({{whole, seen(newer, {0})}, {}}, {0, 1}),
             Contains("no rank sees its part 1 of 2"));
  // One host has not come to commit, the other one has.
  CHECK(problem_of({{whole, seen(newer, {0})}, {seen(newer, {1}, false)}}, {0, 1}).empty());
  Sighting damaged = seen(newer, {0, 1});
  damaged.manifest.clear();
  damaged.problem = "it is damaged";
  CHECK(problem_of({{whole, damaged}}, {0}) == "it is damaged");
  CHECK(find_candidates({{seen(newer, {0, 1}, false)}}, {0}).empty());
}

TEST_CASE("the ranks of a host share the reading, and each host may read a part") {
  const Manifest manifest = make_checkpoint(7, 120, 3).manifest;
  const std::vector<Sighting> all = {seen(manifest, {0, 1, 2})};
  const auto candidates = find_candidates({all, all, all}, {0, 0, 1});
  REQUIRE(candidates.size() == 1);
  using Readers = std::vector<std::vector<int>>;
  CHECK(candidates[0].readers == Readers{{0, 2}, {2, 1}, {0, 2}});
}

}  // namespace
