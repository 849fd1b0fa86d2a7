# Read by the scripts of the packages, in the tree's root: what is built, and the recipes of the page.
built=$PWD/target/release
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
page=$PWD/docs/hosts.md

recipe() { # recipe HEADING: the first fenced code below "### HEADING" of docs/hosts.md
    awk -v heading="### $1" '
        $0 == heading { below = 1; next }
        below && !inside && /^#/ { exit }
        below && /^```/ { if (inside) exit; inside = 1; next }
        inside { print; found = 1 }
        END { exit !found }' "$page"
}

new_directory() { # an empty directory outside the tree, gone when the script ends
    local made
    made=$(mktemp -d)
    # shellcheck disable=SC2064 # the name as it is now
    trap "rm -rf '$made'" EXIT
    directory=$made
}

served() { # served OUTPUT: the program's output shows that a log of Duralite served it
    grep -q 'engine.*waldio\|engine.*nvwal' <<<"$1" || {
        printf 'not served by Duralite:\n%s\n' "$1" >&2
        return 1
    }
}
