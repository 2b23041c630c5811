"""The reference worker's front: nothing here imports torch (see ``reference``)."""

from crucible.prove.imports import nothing_is_garbage


def main() -> None:
    with nothing_is_garbage():
        from crucible.prove import reference
    reference.main()


if __name__ == "__main__":
    main()
