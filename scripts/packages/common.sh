# The scripts of the packages read this file, in the tree's root: where the built files are, and the recipes of the
# pages.
built=$PWD/target/release
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
page=$PWD/docs/hosts.md

page_of_retries=$PWD/docs/many-writers.md

# The page is docs/hosts.md; `page=$page_of_retries recipe ...` takes the recipe from the other page.
recipe() { # recipe HEADING [NUMBER]: the first fenced code below "### HEADING" of the page, or the one of that number
    awk -v heading="### $1" -v wanted="${2:-1}" '
        $0 == heading { below = 1; next }
        below && !inside && /^#/ { exit }
        below && /^```/ { if (found) exit; inside = !inside; number += inside; next }
        inside && number == wanted { print; found = 1 }
        END { exit !found }' "$page"
}

new_directory() { # an empty directory on a disk, outside the tree, gone when the script ends
    local made
    made=$(mktemp -d -p /var/tmp)
    # shellcheck disable=SC2064 # the name as it is now
    trap "rm -rf '$made'" EXIT
    directory=$made
}

served() { # served OUTPUT: the program's output is the status of a log that serves it, and survives a power loss
    local line
    for line in 'engine.waldio' 'state.active' 'guarantee.power-loss'; do
        grep -q "^$line\$" <<<"$1" || {
            printf 'not served by Duralite (no %s):\n%s\n' "$line" "$1" >&2
            return 1
        }
    done
}

counts_one() { # counts_one COMMAND...: the program, a recipe of docs/many-writers.md, prints 1
    local output
    rm -f app.db*
    output=$("$@")
    [ "$output" = 1 ] || {
        printf 'not 1, but:\n%s\n' "$output" >&2
        return 1
    }
}

# `make packages` sets the build id that all libraries must have, the wheel's among them. A script that runs by itself
# accepts what is built.
says_version() { # says_version TEXT: it is that of the library, with its build id in brackets
    local pattern="$version( \\(.+\\))?"
    [ -z "${PACKAGES_BUILD_ID:-}" ] || pattern="$version \\($PACKAGES_BUILD_ID\\)"
    grep -qxE "$pattern" <<<"$1" || {
        printf 'the version is %s, not %s\n' "$1" "$pattern" >&2
        return 1
    }
}

refused() { # refused TEXT: what was opened with journal=no has failed with the reason
    grep -q 'journal=no is not valid' <<<"$1" || {
        printf 'not refused with the reason:\n%s\n' "$1" >&2
        return 1
    }
}
