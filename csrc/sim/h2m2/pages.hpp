#pragma once

#include <array>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace lamina::h2m2 {

// There are not enough free frames, or not enough free token slots. Nothing has changed.
struct NoRoom : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Where : std::uint8_t { kHbm = 0, kLpddr = 1 };

constexpr Where other(Where side) { return side == Where::kHbm ? Where::kLpddr : Where::kHbm; }

// The page tables of both sides, flat, as the paper's host driver keeps them (its section 4.2.1), and each
// side's free frames. A logical page may be on both sides at once.
//
// Every operation either happens completely or throws and changes nothing.
class Pages {
public:
  using Page = std::uint32_t;
  using Frame = std::uint32_t;
  static constexpr std::uint32_t kNone = UINT32_MAX;

  Pages(std::int64_t logical_pages, std::int64_t hbm_frames, std::int64_t lpddr_frames);

  // Bytes of one side's flat table: an entry of 8 bytes for each page of logical space.
  static std::int64_t table_bytes(std::int64_t logical_bytes, std::int64_t page_bytes);

  // Puts a page on a side where it is not, or takes it off one where it is.
  void map(Where side, Page page);
  void unmap(Where side, Page page);

  // To a side where the page is not, from the other. The frame there is taken before the one here is given
  // back.
  void move(Page page, Where to);

  Frame frame(Where side, Page page) const;
  bool mapped(Where side, Page page) const { return frame(side, page) != kNone; }

  std::int64_t logical_pages() const { return static_cast<std::int64_t>(of(Where::kHbm).table.size()); }
  std::int64_t frames(Where side) const { return static_cast<std::int64_t>(of(side).owner.size()); }
  std::int64_t free(Where side) const { return static_cast<std::int64_t>(of(side).free_frames.size()); }
  std::int64_t used(Where side) const { return frames(side) - free(side); }

  // Recounts everything and throws std::logic_error naming the first thing found wrong.
  void check_integrity() const;

private:
  friend struct MemoryTestAccess;  // the stress test breaks tables to see that check_integrity() notices

  struct Bank {
    std::vector<Frame> table;        // of each logical page
    std::vector<Page> owner;         // of each frame
    std::vector<Frame> free_frames;  // the last one goes out first
  };

  Bank& of(Where side) { return sides_[static_cast<std::size_t>(side)]; }
  const Bank& of(Where side) const { return sides_[static_cast<std::size_t>(side)]; }
  void check_side(Where side) const;
  void require_known(Page page) const;
  void require_absent(Where side, Page page) const;
  void require_free(Where side) const;

  std::array<Bank, 2> sides_;
};

}  // namespace lamina::h2m2
