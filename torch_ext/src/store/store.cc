// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/store/store.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <set>
#include <system_error>

#include "core/src/base/system.h"
#include "ronde/error.h"

namespace ronde::store {

namespace fs = std::filesystem;

namespace {

const char* advice(int code) {
  switch (code) {
    case ENOSPC:
    case EDQUOT:
      return ". Free some space, or keep fewer checkpoints: those that are complete are intact";
    case EACCES:
    case EPERM:
    case EROFS:
      return ". Give this user the permission, or choose another folder";
    case EEXIST:
    case ENOTDIR:
      return ". A file has this name: choose another folder";
    default:
      return "";
  }
}

/// Throws Error with the path, the system's words by `code`, and what to do.
[[noreturn]] void fail(const std::string& what, const fs::path& path, int code) {
  throw Error(what + " " + path.string() + ": " + errno_text(code) + advice(code));
}

UniqueFd open_folder(const fs::path& path) {
  UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) fail("cannot open the folder", path, errno);
  return folder;
}

/// Makes files that were created or renamed in the folder durable.
void sync_folder(int folder, const fs::path& path) {
  if (::fsync(folder) != 0) fail("cannot make durable", path, errno);
}

void make_folders(const fs::path& path) {
  std::error_code error;
  std::vector<fs::path> parents;  // of the folders that are created
  for (auto place = path; !place.empty() && !fs::exists(place, error);) {
    place = place.parent_path();
    parents.push_back(place.empty() ? "." : place);
  }
  fs::create_directories(path, error);
  if (error) fail("cannot make the folder", path, error.value());
  for (const auto& parent : parents) {
    // A folder may be writable but not readable.
    if (::access(parent.c_str(), R_OK) == 0) sync_folder(open_folder(parent).get(), parent);
  }
}

RuntimeSpan span_of(const BeginSpan& begin, std::string_view name, const fs::path& path) {
  RuntimeSpan span = begin ? begin(name) : RuntimeSpan();
  span.set_file(path.string());
  return span;
}

void write_all(int file, std::string_view bytes, const fs::path& path, RuntimeSpan& span) {
  constexpr std::size_t kMostAtOnce = std::size_t{1} << 26;
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), std::min(bytes.size(), kMostAtOnce));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("cannot write", path, errno);
    span.add_bytes(static_cast<std::uint64_t>(written));
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

/// Creates or replaces a file and syncs it; sync_folder() must follow. `path` is for errors.
void write_file(int folder, const std::string& name, std::string_view bytes, const fs::path& path,
                const BeginSpan& begin_span) {
  constexpr mode_t kMode = 0666;
  RuntimeSpan span = span_of(begin_span, "write checkpoint file", path / name);
  UniqueFd file(::openat(folder, name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode));
  if (!file) fail("cannot make", path / name, errno);
  write_all(file.get(), bytes, path / name, span);
  if (::fsync(file.get()) != 0) fail("cannot make durable", path / name, errno);
}

std::string read_file(const fs::path& path, const BeginSpan& begin_span) {
  RuntimeSpan span = span_of(begin_span, "read checkpoint file", path);
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status = {};
  if (!file || ::fstat(file.get(), &status) != 0) fail("cannot read", path, errno);
  std::string bytes(static_cast<std::size_t>(std::max<off_t>(status.st_size, 0)), '\0');
  std::size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got = ::read(file.get(), bytes.data() + filled, bytes.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("cannot read", path, errno);
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
    span.add_bytes(static_cast<std::uint64_t>(got));
  }
  bytes.resize(filled);
  return bytes;
}

constexpr std::string_view kPartial = "partial-";
constexpr const char* kManifest = "manifest.json";

std::string part_file(std::int64_t part, Copy copy, const char* ending) {
  return (copy == Copy::Own ? "part-" : "copy-") + std::to_string(part) + ending;
}

/// Returns the number in "part-12.json" or "copy-12.json"; -1 for another file.
std::int64_t part_of(std::string_view file) {
  constexpr std::string_view kEnding = ".json";
  if (!file.starts_with("part-") && !file.starts_with("copy-")) return -1;
  if (!file.ends_with(kEnding)) return -1;
  file.remove_suffix(kEnding.size());
  file.remove_prefix(5);
  std::int64_t part = -1;
  const auto [end, error] = std::from_chars(file.data(), file.data() + file.size(), part);
  return error == std::errc() && end == file.data() + file.size() ? part : -1;
}

/// A folder whose name is that of a checkpoint, complete or in progress.
struct Found {
  Name name = {};
  bool committed = false;
  fs::path path = {};
};

std::vector<Found> folders_in(const fs::path& folder) {
  std::vector<Found> all;
  std::error_code error;
  fs::directory_iterator file(folder, error);
  if (error == std::errc::no_such_file_or_directory) return all;
  for (; !error && file != fs::directory_iterator(); file.increment(error)) {
    const std::string text = file->path().filename().string();
    Found found;
    found.committed = !text.starts_with(kPartial);
    found.path = file->path();
    const std::size_t prefix = found.committed ? 0 : kPartial.size();
    if (parse_folder_name(std::string_view(text).substr(prefix), found.name)) all.push_back(found);
  }
  if (error) fail("cannot read the folder", folder, error.value());
  return all;
}

Sighting inspect(const fs::path& folder, const Name& name, bool committed,
                 const BeginSpan& begin_span) {
  Sighting sighting{.name = name, .committed = committed};
  std::set<std::int64_t> parts;
  std::error_code vanished;  // another rank may remove it
  for (const fs::directory_entry& file : fs::directory_iterator(folder, vanished)) {
    const std::int64_t part = part_of(file.path().filename().string());
    if (part >= 0) parts.insert(part);
  }
  sighting.parts.assign(parts.begin(), parts.end());
  if (!committed) return sighting;
  try {
    std::string text = read_file(folder / kManifest, begin_span);
    if (decode_manifest(text).name != name) throw FormatError("it is another checkpoint's");
    sighting.manifest = std::move(text);
  } catch (const NewerVersion& error) {
    throw NewerVersion((folder / kManifest).string() + ": " + error.what());
  } catch (const FormatError& error) {
    sighting.problem = (folder / kManifest).string() + " is damaged: " + error.what();
  } catch (const Error& error) {
    sighting.problem = error.what();
  }
  return sighting;
}

/// Removes the manifest first, which makes the checkpoint invalid. Other ranks may remove it as
/// well.
void remove_checkpoint(const fs::path& folder) {
  std::error_code error;
  fs::remove(folder / kManifest, error);
  if (!error) fs::remove_all(folder, error);
  if (error && error != std::errc::no_such_file_or_directory) {
    fail("cannot remove the older checkpoint", folder, error.value());
  }
}

/// Writes relative to the open folder, which a rank on another host may rename meanwhile; it then
/// has the same manifest.
void write_manifest(const Manifest& manifest, const fs::path& path, const BeginSpan& begin_span) {
  make_folders(path);  // this folder may have no part
  const UniqueFd folder = open_folder(path);
  const std::string temporary = std::string(kManifest) + "." + to_hex(random_bytes(4));
  write_file(folder.get(), temporary, encode_manifest(manifest), path, begin_span);
  if (::renameat(folder.get(), temporary.c_str(), folder.get(), kManifest) != 0) {
    fail("cannot rename", path / temporary, errno);
  }
  sync_folder(folder.get(), path);
}

Part read_and_verify(const fs::path& folder, const PartSummary& summary, Copy copy,
                     const BeginSpan& begin_span) {
  const fs::path index = folder / part_file(summary.part, copy, ".json");
  const fs::path data = folder / part_file(summary.part, copy, ".pt");
  Part part{.index = read_file(index, begin_span)};
  if (checksum_text(part.index) != summary.index) {
    throw FormatError(index.string() + " is damaged: its checksum is not the manifest's");
  }
  try {
    part.entries = decode_index(part.index, summary.bytes);
  } catch (const FormatError& error) {
    throw FormatError(index.string() + " is damaged: " + error.what());
  }
  part.data = read_file(data, begin_span);
  if (part.data.size() != summary.bytes) {
    throw FormatError(data.string() + " has " + std::to_string(part.data.size()) + " bytes of " +
                      std::to_string(summary.bytes) + ": it is a part of a file");
  }
  for (const Entry& entry : part.entries) {
    const auto bytes = std::string_view(part.data).substr(entry.offset, entry.bytes);
    if (checksum_text(bytes) == entry.checksum) continue;
    throw FormatError(data.string() + " is damaged: the checksum of \"" + entry.name +
                      "\" is wrong");
  }
  return part;
}

}  // namespace

fs::path Store::partial(const Name& name) const {
  return folder_ / (std::string(kPartial) + folder_name(name));
}

std::string Store::prepare() const {
  make_folders(folder_);
  if (::access(folder_.c_str(), R_OK | W_OK | X_OK) != 0) {
    fail("cannot write checkpoints into", folder_, errno);
  }
  struct stat status = {};
  if (::stat(folder_.c_str(), &status) != 0) fail("cannot look at", folder_, errno);
  return std::to_string(status.st_dev) + "/" + std::to_string(status.st_ino);
}

std::vector<Sighting> Store::scan() const {
  std::vector<Sighting> sightings;
  for (const Found& found : folders_in(folder_)) {
    sightings.push_back(inspect(found.path, found.name, found.committed, begin_span_));
  }
  return sightings;
}

void Store::write_part(const Name& name, std::int64_t part, Copy copy, std::string_view index,
                       std::string_view data) const {
  const fs::path path = partial(name);
  make_folders(path);
  const UniqueFd folder = open_folder(path);
  write_file(folder.get(), part_file(part, copy, ".pt"), data, path, begin_span_);
  write_file(folder.get(), part_file(part, copy, ".json"), index, path, begin_span_);
  sync_folder(folder.get(), path);
}

void Store::commit(const Manifest& manifest) const {
  const fs::path from = partial(manifest.name);
  const fs::path to = folder_ / folder_name(manifest.name);
  const auto is_committed = [&] {
    std::error_code unknown;
    return fs::exists(to / kManifest, unknown);
  };
  if (is_committed()) return;
  try {
    write_manifest(manifest, from, begin_span_);
    if (::rename(from.c_str(), to.c_str()) != 0) fail("cannot rename", from, errno);
  } catch (const Error&) {
    // A rank on another host may have committed it meanwhile.
    if (!is_committed()) throw;
    discard(manifest.name);
  }
  sync_folder(open_folder(folder_).get(), folder_);
}

void Store::discard(const Name& name) const noexcept {
  std::error_code later;  // prune() tries again
  fs::remove_all(partial(name), later);
}

void Store::check_alone(const Name& own, std::int64_t first) const {
  for (const Found& found : folders_in(folder_)) {
    if (!found.committed || found.name.run == own.run || found.name.sequence < first) continue;
    throw Error("another job, or Checkpoint, saves into " + folder_.string() + ": it has made " +
                folder_name(found.name) + " since this one began. Give each a folder of its own");
  }
}

void Store::prune(int keep, const Name& newest, const Range& passed_over,
                  std::int64_t first) const {
  std::string problem;
  const auto remove = [&](const Found& found) {
    try {
      remove_checkpoint(found.path);
    } catch (const Error& error) {
      if (problem.empty()) problem = error.what();
    }
  };
  std::vector<Found> complete;
  for (Found& found : folders_in(folder_)) {
    if (found.name.run != newest.run && found.name.sequence >= first) continue;
    if (found.committed) {
      complete.push_back(std::move(found));
    } else if (found.name.sequence < newest.sequence) {
      remove(found);
    }
  }
  std::sort(complete.begin(), complete.end(),
            [](const Found& a, const Found& b) { return a.name.sequence > b.name.sequence; });
  int kept = 0;
  for (const Found& found : complete) {
    if (keep > 0 && kept == keep) {
      remove(found);
    } else if (!passed_over.contains(found.name.sequence)) {
      ++kept;
    }
  }
  if (!problem.empty()) throw Error(problem);
}

Part Store::read_part(const Sighting& sighting, const PartSummary& summary) const {
  const fs::path folder =
      sighting.committed ? folder_ / folder_name(sighting.name) : partial(sighting.name);
  std::string problem;
  for (const Copy copy : {Copy::Own, Copy::OfAnotherHost}) {
    std::error_code unknown;
    if (!fs::exists(folder / part_file(summary.part, copy, ".json"), unknown)) continue;
    try {
      return read_and_verify(folder, summary, copy, begin_span_);
    } catch (const Error& error) {
      problem += (problem.empty() ? "" : "; ") + std::string(error.what());
    }
  }
  throw FormatError(problem.empty()
                        ? "part " + std::to_string(summary.part) + " is not in " + folder.string()
                        : problem);
}

}  // namespace ronde::store
