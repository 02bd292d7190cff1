-- name: CreateAuthors :copyfrom
INSERT INTO authors (name) VALUES ($1);

-- name: RenameAuthor :batchexec
UPDATE authors SET name = $2 WHERE id = $1;
