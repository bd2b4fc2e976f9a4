// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "elements.h"

// What the threads of a grid do, as functions of their numbers: the kernels call them on a GPU,
// and tests on the CPU.

namespace ronde::cuda::kernels {

constexpr unsigned kThreads = 512;
/// What blocks divide among them is whole tiles, of so many bytes of the wider type: one access of
/// 16 bytes by each thread, so that small messages are spread over many blocks.
constexpr std::uint64_t kTileBytes = 16 * kThreads;
/// Most inputs of a reduction: ranks of a host.
constexpr unsigned kMostInputs = 64;

/// A thread of a grid of any size.
struct Place {
  unsigned block;
  unsigned blocks;
  unsigned thread;  ///< of kThreads in its block
};

struct Range {
  std::uint64_t begin;
  std::uint64_t end;
};

/// Tiles of a block. They are neighbours, so that the blocks, which run at the same time, are
/// spread over the memory of all ranks.
RONDE_EVERYWHERE Range tiles_of_block(std::uint64_t tiles, const Place& place) {
  return {tiles * place.block / place.blocks, tiles * (place.block + 1) / place.blocks};
}

/// A piece of a tensor on its way into the fusion buffer, or out of it.
struct SegmentCopy {
  const void* source;  ///< null: there is nothing, and the neutral element is written
  void* target;
  std::uint32_t count;       ///< of elements, not 0
  std::uint32_t first_tile;  ///< of this segment, among the tiles of all
};

/// Segments of a launch: what fits into the 4 KiB of parameters that every driver takes.
constexpr unsigned kMostSegments = 169;
/// Elements of a segment; a multiple of a chunk, as longer ones are split.
constexpr std::uint64_t kMostElements = std::uint64_t{1} << 31;

struct CopyArguments {
  Scale scale;
  Operation neutral_of;
  std::uint32_t count;  ///< of segments
  std::uint32_t tiles;
  SegmentCopy segments[kMostSegments];
};
static_assert(sizeof(CopyArguments) <= 4096);

/// Tiles of a segment whose wider type has `width` bytes.
RONDE_EVERYWHERE std::uint64_t tiles_of(std::uint64_t count, std::size_t width) {
  return (count * width + kTileBytes - 1) / kTileBytes;
}

/// Which segment a tile belongs to.
RONDE_EVERYWHERE std::uint32_t segment_of(const CopyArguments& how, std::uint64_t tile) {
  std::uint32_t first = 0;
  std::uint32_t count = how.count;
  while (count > 1) {
    const std::uint32_t half = count / 2;
    if (how.segments[first + half].first_tile <= tile) {
      first += half;
      count -= half;
    } else {
      count = half;
    }
  }
  return first;
}

/// `kCount` elements that are loaded and stored at once, 16 bytes at most of the wider type.
template <typename Storage, unsigned kCount>
struct alignas(sizeof(Storage) * kCount < 16 ? sizeof(Storage) * kCount : 16) Chunk {
  Storage values[kCount];
};

template <typename Type>
RONDE_EVERYWHERE bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % alignof(Type) == 0;
}

template <typename From, typename To>
constexpr unsigned kWidth = sizeof(typename From::Storage) > sizeof(typename To::Storage)
                                ? sizeof(typename From::Storage)
                                : sizeof(typename To::Storage);
/// Elements of a chunk, and of a tile.
template <typename From, typename To>
constexpr unsigned kChunk = 16 / kWidth<From, To>;
template <typename From, typename To>
constexpr std::uint64_t kTile = kTileBytes / kWidth<From, To>;

template <typename From, typename To>
RONDE_EVERYWHERE typename To::Storage convert(typename From::Storage value, Scale scale) {
  // In the precision of the wider one.
  if constexpr (sizeof(typename From::Storage) >= sizeof(typename To::Storage)) {
    return To::narrow(converted<To>(canonical(scaled<From>(From::widen(value), scale))));
  } else {
    return To::narrow(canonical(scaled<To>(converted<To>(From::widen(value)), scale)));
  }
}

/// Elements of a segment from the beginning of a tile, by all threads of a block.
template <typename From, typename To>
RONDE_EVERYWHERE void copy_elements(const SegmentCopy& segment, Range elements, unsigned thread,
                                    Scale scale, Operation neutral_of) {
  const auto [begin, end] = elements;
  const auto* const source = static_cast<const typename From::Storage*>(segment.source);
  auto* const target = static_cast<typename To::Storage*>(segment.target);
  if (source == nullptr) {
    const auto value = To::narrow(neutral<To>(neutral_of));
    for (std::uint64_t i = begin + thread; i < end; i += kThreads) target[i] = value;
    return;
  }
  using Loaded = Chunk<typename From::Storage, kChunk<From, To>>;
  using Stored = Chunk<typename To::Storage, kChunk<From, To>>;
  std::uint64_t done = begin;
  if (is_aligned<Loaded>(source) && is_aligned<Stored>(target)) {
    const std::uint64_t chunks = (end - begin) / kChunk<From, To>;
    for (std::uint64_t i = thread; i < chunks; i += kThreads) {
      const std::uint64_t at = begin + i * kChunk<From, To>;
      const Loaded loaded = *reinterpret_cast<const Loaded*>(source + at);
      Stored stored;
      for (unsigned k = 0; k < kChunk<From, To>; ++k) {
        stored.values[k] = convert<From, To>(loaded.values[k], scale);
      }
      *reinterpret_cast<Stored*>(target + at) = stored;
    }
    done += chunks * kChunk<From, To>;
  }
  for (std::uint64_t i = done + thread; i < end; i += kThreads) {
    target[i] = convert<From, To>(source[i], scale);
  }
}

template <typename From, typename To>
RONDE_EVERYWHERE void copy_segments(const CopyArguments& how, const Place& place) {
  const Range own = tiles_of_block(how.tiles, place);
  for (std::uint32_t i = segment_of(how, own.begin);
       i < how.count && how.segments[i].first_tile < own.end; ++i) {
    const SegmentCopy& segment = how.segments[i];
    const std::uint64_t first = segment.first_tile;
    const std::uint64_t begin = (own.begin > first ? own.begin - first : 0) * kTile<From, To>;
    const std::uint64_t end = (own.end - first) * kTile<From, To>;
    copy_elements<From, To>(segment, {begin, end < segment.count ? end : segment.count},
                            place.thread, how.scale, how.neutral_of);
  }
}

/// Inputs of all ranks, in their order, and where the result goes; it may be an input.
struct ReductionArguments {
  const void* inputs[kMostInputs];  ///< null: the neutral element
  void* output;
  std::uint64_t count;
  std::uint32_t input_count;
  /// An input is null. The neutral element is then taken first, wherever that one is.
  std::uint32_t starts_neutral;
  Operation operation;
  Scale prescale;
  Scale final_scale;
};

/// Elements `at` to `at + kCount`, with loads and stores of chunks.
template <typename Element, unsigned kCount>
RONDE_EVERYWHERE void reduce_chunk(const ReductionArguments& how, std::uint64_t at) {
  using Storage = typename Element::Storage;
  using Loaded = Chunk<Storage, kCount>;
  typename Element::Wide results[kCount];
  for (unsigned k = 0; k < kCount; ++k) results[k] = neutral<Element>(how.operation);
  bool has_result = how.starts_neutral != 0;
  for (std::uint32_t input = 0; input < how.input_count; ++input) {
    if (how.inputs[input] == nullptr) continue;
    const auto* const values = static_cast<const Storage*>(how.inputs[input]) + at;
    const Loaded loaded = *reinterpret_cast<const Loaded*>(values);
    for (unsigned k = 0; k < kCount; ++k) {
      const auto operand = scaled<Element>(Element::widen(loaded.values[k]), how.prescale);
      results[k] = has_result ? combined<Element>(results[k], operand, how.operation) : operand;
    }
    has_result = true;
  }
  Loaded stored;
  for (unsigned k = 0; k < kCount; ++k) {
    stored.values[k] = Element::narrow(canonical(scaled<Element>(results[k], how.final_scale)));
  }
  *reinterpret_cast<Loaded*>(static_cast<Storage*>(how.output) + at) = stored;
}

template <typename Element>
RONDE_EVERYWHERE void reduce_elements(const ReductionArguments& how, const Place& place) {
  constexpr unsigned kCount = kChunk<Element, Element>;
  using Loaded = Chunk<typename Element::Storage, kCount>;
  const Range tiles = tiles_of_block(tiles_of(how.count, sizeof(typename Element::Storage)), place);
  const std::uint64_t begin = tiles.begin * kTile<Element, Element>;
  const std::uint64_t limit = tiles.end * kTile<Element, Element>;
  const std::uint64_t end = limit < how.count ? limit : how.count;
  bool aligned = is_aligned<Loaded>(how.output);
  for (std::uint32_t i = 0; i < how.input_count; ++i) {
    aligned = aligned && is_aligned<Loaded>(how.inputs[i]);
  }
  const std::uint64_t chunks = aligned ? (end - begin) / kCount : 0;
  for (std::uint64_t i = place.thread; i < chunks; i += kThreads) {
    reduce_chunk<Element, kCount>(how, begin + i * kCount);
  }
  for (std::uint64_t i = begin + chunks * kCount + place.thread; i < end; i += kThreads) {
    reduce_chunk<Element, 1>(how, i);
  }
}

}  // namespace ronde::cuda::kernels
