// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/store/manifest.h"

#include <sodium/crypto_shorthash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "core/src/base/json.h"

namespace ronde::store {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "ronde checkpoint";
constexpr std::int64_t kMostRanks = std::int64_t{1} << 24;
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

[[noreturn]] void refuse(const std::string& reason) {
  throw FormatError(reason);
}

Json parse(std::string_view text) {
  // The decoders visit values recursively.
  constexpr int kDeepest = 16;
  const auto check_depth = [](int depth, Json::parse_event_t, const Json&) {
    if (depth > kDeepest) refuse("it is nested deeper than any that Ronde writes");
    return true;
  };
  Json json = Json::parse(text, check_depth, /*allow_exceptions=*/false);
  if (json.is_discarded()) refuse("it is no JSON text, or only a part of one");
  return json;
}

const Json& field(const Json& json, const char* key) {
  if (!json.is_object()) refuse("an object is expected where the text has something else");
  const auto found = json.find(key);
  if (found == json.end()) refuse(std::string("there is no \"") + key + "\"");
  return *found;
}

std::int64_t whole(const Json& value, const char* key, std::int64_t least, std::int64_t most) {
  const bool fits = value.is_number_unsigned()
                        ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(kMost)
                        : value.is_number_integer();
  if (!fits || value.get<std::int64_t>() < least || value.get<std::int64_t>() > most) {
    refuse(std::string("\"") + key + "\" is no whole number from " + std::to_string(least) +
           " to " + std::to_string(most));
  }
  return value.get<std::int64_t>();
}

std::int64_t number(const Json& json, const char* key, std::int64_t least = 0,
                    std::int64_t most = kMost) {
  return whole(field(json, key), key, least, most);
}

std::string text_of(const Json& json, const char* key) {
  const Json& value = field(json, key);
  if (!value.is_string()) refuse(std::string("\"") + key + "\" is no text");
  return value.get<std::string>();
}

const Json& list(const Json& json, const char* key) {
  const Json& value = field(json, key);
  if (!value.is_array()) refuse(std::string("\"") + key + "\" is no list");
  return value;
}

bool is_hexadecimal(std::string_view text, std::size_t digits) {
  return text.size() == digits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string checksum_in(const Json& json, const char* key) {
  std::string text = text_of(json, key);
  if (!is_hexadecimal(text, 16)) refuse(std::string("\"") + key + "\" is no checksum");
  return text;
}

Json json_of(const Name& name) {
  return {{"sequence", name.sequence}, {"step", name.step}, {"run", name.run}};
}

Name name_in(const Json& json) {
  Name name{number(json, "sequence"), number(json, "step"), text_of(json, "run")};
  if (!is_hexadecimal(name.run, 8)) refuse("\"run\" is not eight hexadecimal digits");
  return name;
}

std::vector<PartSummary> parts_in(const Json& content, std::int64_t ranks) {
  std::vector<PartSummary> parts;
  std::int64_t least = 0;
  for (const Json& json : list(content, "parts")) {
    PartSummary part{number(json, "part", least, ranks - 1),
                     static_cast<std::uint64_t>(number(json, "bytes")), checksum_in(json, "index")};
    least = part.part + 1;
    parts.push_back(std::move(part));
  }
  return parts;
}

Json json_of(const Entry& entry) {
  return {{"name", entry.name},   {"type", entry.type},        {"dtype", entry.dtype},
          {"shape", entry.shape}, {"rank", entry.rank},        {"offset", entry.offset},
          {"bytes", entry.bytes}, {"checksum", entry.checksum}};
}

Entry entry_in(const Json& json, std::uint64_t bytes_of_part) {
  Entry entry;
  entry.name = text_of(json, "name");
  entry.type = text_of(json, "type");
  entry.dtype = text_of(json, "dtype");
  for (const Json& size : list(json, "shape"))
    entry.shape.push_back(whole(size, "shape", 0, kMost));
  entry.rank = number(json, "rank", -1, kMostRanks);
  entry.offset = static_cast<std::uint64_t>(number(json, "offset"));
  entry.bytes = static_cast<std::uint64_t>(number(json, "bytes"));
  entry.checksum = checksum_in(json, "checksum");
  if (entry.offset > bytes_of_part || entry.bytes > bytes_of_part - entry.offset) {
    refuse("entry \"" + entry.name + "\" ends behind the file's " + std::to_string(bytes_of_part) +
           " bytes");
  }
  return entry;
}

bool parse_number(std::string_view text, std::int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0;
}

struct Seen {
  std::string manifest;
  std::string problem;
  bool committed = false;
  std::map<std::int64_t, std::map<int, std::vector<int>>> ranks;  // by part and host
};

void record(const Sighting& sighting, int rank, int host, Seen& seen) {
  seen.committed |= sighting.committed;
  if (seen.manifest.empty()) seen.manifest = sighting.manifest;
  if (seen.problem.empty()) seen.problem = sighting.problem;
  for (const std::int64_t part : sighting.parts) seen.ranks[part][host].push_back(rank);
}

Candidate make_candidate(const Name& name, const Seen& seen) {
  Candidate candidate{.name = name};
  if (seen.manifest.empty()) {
    candidate.problem = seen.problem.empty() ? "it has no manifest" : seen.problem;
    return candidate;
  }
  candidate.manifest = decode_manifest(seen.manifest);
  std::string missing;
  for (const PartSummary& summary : candidate.manifest.parts) {
    std::vector<int>& readers = candidate.readers.emplace_back();
    const auto found = seen.ranks.find(summary.part);
    if (found == seen.ranks.end()) {
      missing += (missing.empty() ? "" : ", ") + std::to_string(summary.part);
      continue;
    }
    // The ranks of a host share the work.
    for (const auto& [host, ranks] : found->second) {
      readers.push_back(ranks[static_cast<std::size_t>(summary.part) % ranks.size()]);
    }
    const auto first = static_cast<std::size_t>(summary.part) % readers.size();
    std::rotate(readers.begin(), readers.begin() + static_cast<std::ptrdiff_t>(first),
                readers.end());
  }
  if (!missing.empty()) {
    candidate.problem = "no rank sees its part " + missing + " of " +
                        std::to_string(candidate.manifest.ranks) +
                        ": the file is missing, or on the disk of a host that is";
  }
  return candidate;
}

}  // namespace

std::string folder_name(const Name& name) {
  std::string sequence = std::to_string(name.sequence);
  if (sequence.size() < 6) sequence.insert(0, 6 - sequence.size(), '0');
  return sequence + "-step-" + std::to_string(name.step) + "-" + name.run;
}

bool parse_folder_name(std::string_view text, Name& name) {
  constexpr std::string_view kStep = "-step-";
  const std::size_t step = text.find(kStep);
  const std::size_t run = text.rfind('-');
  if (step == std::string_view::npos || run < step + kStep.size()) return false;
  name.run = text.substr(run + 1);
  const std::size_t first = step + kStep.size();
  return parse_number(text.substr(0, step), name.sequence) &&
         parse_number(text.substr(first, run - first), name.step) && is_hexadecimal(name.run, 8) &&
         folder_name(name) == text;
}

std::string encode_manifest(const Manifest& manifest) {
  Json content = json_of(manifest.name);
  content.update({{"format", kFormat},
                  {"version", manifest.version},
                  {"ranks", manifest.ranks},
                  {"parts", Json::array()}});
  for (const PartSummary& part : manifest.parts) {
    content["parts"].push_back({{"part", part.part}, {"bytes", part.bytes}, {"index", part.index}});
  }
  return Json{{"checksum", checksum_text(content.dump())}, {"content", content}}.dump(1) + "\n";
}

Manifest decode_manifest(std::string_view text) {
  const Json json = parse(text);
  const Json& content = field(json, "content");
  // dump() would throw for texts that are not UTF-8.
  const std::string written = content.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (checksum_in(json, "checksum") != checksum_text(written)) refuse("its checksum is wrong");
  if (text_of(content, "format") != kFormat) refuse("it is of another format");
  Manifest manifest;
  manifest.version = number(content, "version", kVersion);
  if (manifest.version > kVersion) {
    throw NewerVersion("it has version " + std::to_string(manifest.version) +
                       " of the format, and this Ronde reads " + std::to_string(kVersion) +
                       ". Resume with the Ronde that wrote it, or a newer one");
  }
  manifest.name = name_in(content);
  manifest.ranks = number(content, "ranks", 1, kMostRanks);
  manifest.parts = parts_in(content, manifest.ranks);
  return manifest;
}

std::string encode_index(const std::vector<Entry>& entries) {
  Json all = Json::array();
  for (const Entry& entry : entries) all.push_back(json_of(entry));
  return Json{{"entries", all}}.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::vector<Entry> decode_index(std::string_view text, std::uint64_t bytes) {
  std::vector<Entry> entries;
  std::set<std::pair<std::string, std::int64_t>> names;
  const Json json = parse(text);
  for (const Json& entry : list(json, "entries")) {
    entries.push_back(entry_in(entry, bytes));
    if (!names.emplace(entries.back().name, entries.back().rank).second) {
      refuse("there are two entries \"" + entries.back().name + "\"");
    }
  }
  return entries;
}

std::string encode_sightings(const std::vector<Sighting>& sightings) {
  Json all = Json::array();
  for (const Sighting& sighting : sightings) {
    Json json = json_of(sighting.name);
    json.update({{"committed", sighting.committed},
                 {"manifest", sighting.manifest},
                 {"problem", sighting.problem},
                 {"parts", sighting.parts}});
    all.push_back(std::move(json));
  }
  return Json{{"sightings", all}}.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<Sighting> decode_sightings(std::string_view text) {
  std::vector<Sighting> sightings;
  const Json all = parse(text);
  for (const Json& json : list(all, "sightings")) {
    Sighting sighting{.name = name_in(json),
                      .manifest = text_of(json, "manifest"),
                      .problem = text_of(json, "problem")};
    const Json& committed = field(json, "committed");
    if (!committed.is_boolean()) refuse("\"committed\" is neither true nor false");
    sighting.committed = committed.get<bool>();
    for (const Json& part : list(json, "parts")) {
      sighting.parts.push_back(whole(part, "parts", 0, kMostRanks));
    }
    sightings.push_back(std::move(sighting));
  }
  return sightings;
}

std::vector<Candidate> find_candidates(const std::vector<std::vector<Sighting>>& all,
                                       const std::vector<int>& host_of) {
  const auto newest_first = [](const Name& a, const Name& b) {
    return std::tie(a.sequence, a.step, a.run) > std::tie(b.sequence, b.step, b.run);
  };
  std::map<Name, Seen, decltype(newest_first)> by_name(newest_first);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (const Sighting& sighting : all[rank]) {
      record(sighting, static_cast<int>(rank), host_of.at(rank), by_name[sighting.name]);
    }
  }
  std::vector<Candidate> candidates;
  for (const auto& [name, seen] : by_name) {
    if (seen.committed) candidates.push_back(make_candidate(name, seen));
  }
  return candidates;
}

std::uint64_t checksum(std::string_view bytes) {
  static_assert(std::endian::native == std::endian::little && crypto_shorthash_BYTES == 8);
  constexpr std::array<unsigned char, crypto_shorthash_KEYBYTES> kKey{};
  std::uint64_t value = 0;
  crypto_shorthash(reinterpret_cast<unsigned char*>(&value),
                   reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), kKey.data());
  return value;
}

std::string checksum_text(std::uint64_t value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(16, '0');
  for (std::size_t i = text.size(); i > 0; value >>= 4) text[--i] = kDigits[value & 15];
  return text;
}

}  // namespace ronde::store
