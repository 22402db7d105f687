"""A spool as one file, for machines that share no folder. Packing and unpacking can be repeated without harm."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import ValidationError

from kernelwright.errors import UsageError
from kernelwright.pool._jobs import Answer, Job
from kernelwright.pool._spool import ANSWER_SUFFIX, FORMAT, MOST_BYTES, Beat, Entry, SpoolFolder

_MARK: Final = "spool.json"
_MOST_FILES: Final = 1_000_000


class Packed(NamedTuple):
    """Numbers of jobs, answers and workers' cards that were written or added."""

    jobs: int = 0
    answers: int = 0
    workers: int = 0


def pack(folder: SpoolFolder, target: Path) -> Packed:
    """Write the jobs without an answer, the answers, and the workers' cards into a zip file.

    Nothing is taken from the spool: a job counts as done only once its answer is back.

    Raises:
        UsageError: the file cannot be written.
        StoreError: the spool cannot be read.
    """
    temporary = target.with_name(f".{target.name}.part")
    counts = Packed()
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_MARK, FORMAT)
            for place, name, text in folder.texts():
                archive.writestr(f"{place}/{name}", text)
                counts = counts._replace(**{place: getattr(counts, place) + 1})
        temporary.replace(target)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}", hint="choose another place") from error
    finally:
        temporary.unlink(missing_ok=True)
    return counts


def unpack(source: Path, spool: SpoolFolder | Path) -> Packed:
    """Add the jobs, answers and cards of a zip file to a spool. What is there already stays as it is.

    Args:
        spool: the spool or its folder, which is made if it is missing.

    Raises:
        UsageError: the file cannot be read or is no packed spool. Nothing was added then.
        StoreError: the spool cannot be written. Unpack again once it can be.
    """
    try:
        with zipfile.ZipFile(source) as archive:
            members = archive.infolist()
            if len(members) > _MOST_FILES or not any(one.filename == _MARK for one in members):
                raise UsageError(f"{source} is no packed spool", hint="make one with 'kernelwright spool pack'")
            if archive.read(_MARK).decode(errors="replace") != FORMAT:
                raise UsageError(f"{source} is a spool of another version", hint="use one version everywhere")
            # All of it is read before any of it is written.
            found = [_read(archive, member, source) for member in members if member.filename != _MARK]
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise UsageError(f"cannot read {source}: {error}", hint="name a file of 'kernelwright spool pack'") from error
    folder = spool if isinstance(spool, SpoolFolder) else SpoolFolder(spool, create=True)
    answers = [one for one in found if isinstance(one, Answer)]
    beats = [one for one in found if isinstance(one, Beat)]
    jobs = [one for one in found if isinstance(one, tuple)]
    added = folder.add_answers(answers)
    return Packed(folder.add_jobs(jobs), added, sum(map(folder.add_beat, beats)))


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo, source: Path) -> Answer | Beat | tuple[Entry, Job]:
    place, _, name = member.filename.partition("/")
    try:
        if member.file_size > MOST_BYTES:
            raise ValueError("too large")
        text = archive.read(member).decode()
        if place == "answers":
            answer = Answer.model_validate_json(text)
            if name == f"{answer.job}{ANSWER_SUFFIX}":
                return answer
        elif place == "workers":
            beat = Beat.model_validate_json(text)
            if name == f"{beat.worker}.json":
                return beat
        elif place == "jobs":
            entry, job = Entry.read(name), Job.model_validate_json(text)
            if entry is not None and entry.job == job.id and not entry.worker:
                return entry, job
        raise ValueError("its name does not fit")
    except (ValueError, ValidationError, zipfile.BadZipFile) as error:
        said = str(error).splitlines()[0]
        raise UsageError(f"{source}: {member.filename} is damaged: {said}", hint="pack the spool again") from error
